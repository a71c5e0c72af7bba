"""A topic on one model and one picture: its texts with the numbers in them, and its page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import Any

from markupsafe import Markup, escape

from vitcli.plugin import load_target
from vitcli.plugins.explain.drawings import Drawing
from vitcli.plugins.explain.subject import Subject
from vitcli.plugins.explain.topics import OVERVIEW, TOPICS
from vitcli.runner.report import pages
from vitcli.runner.report.tables import Table, make_table

SCRIPT = re.compile(r"([_^])\{([^{}]*)\}")
"""A subscript or superscript of a formula: ``_{ij}`` or ``^{T}``."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the module of a topic computes."""

    numbers: dict[str, Any]
    """The numbers of the texts, unrounded, as JSON values."""
    words: dict[str, Any] = field(default_factory=dict)
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True, kw_only=True)
class Lesson:
    texts: Mapping[str, Any]
    """The texts without numbers: ``title``, ``idea``, ``formula``, and ``tries`` as command and
    what it shows."""
    tables: Sequence[Table] = ()
    findings: Sequence[str] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    figures: Sequence[tuple[Drawing, str, str]] = field(default=(), repr=False)
    """Drawings of the page, each with its label and its caption."""

    @property
    def formula_text(self) -> str:
        formula: str = self.texts["formula"]
        return SCRIPT.sub(lambda m: f"{m[1]}{m[2] if m[2].isalnum() else f'({m[2]})'}", formula)

    @property
    def formula_html(self) -> Markup:
        html = str(escape(self.texts["formula"])).replace("\n", "<br>")
        tags = {"_": "sub", "^": "sup"}
        return Markup(SCRIPT.sub(lambda m: f"<{tags[m[1]]}>{m[2]}</{tags[m[1]]}>", html))


class Texts(Formatter):
    """``str.format`` with more formats.

    ``error`` is a rounding error such as ``2e-07``, ``size`` has two decimals or is an error,
    ``shape`` is ``(1, 4, 64)``, ``shapes`` are tensors by name, ``or -`` shows that there is no
    text, and ``.0f %`` is a share in percent.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "error" or (format_spec == "size" and value < 0.01):
            return f"{value:.0e}" if value else "0"
        if format_spec == "shape":
            return str(tuple(value))
        if format_spec == "or -":
            return str(value or "-")
        if format_spec == "shapes":
            return ", ".join(f"{name} {tuple(sizes)}" for name, sizes in value.items())
        if format_spec.endswith(" %"):
            return f"{100 * value:{format_spec[:-2]}} %"
        return str(super().format_field(value, ".2f" if format_spec == "size" else format_spec))


def lesson_of(name: str, subject: Subject) -> Lesson:
    texts = TOPICS[name]
    shown: Shown = load_target(f"vitcli.plugins.explain.shown:explain_{name}")(subject)
    values = subject.sizes() | shown.numbers | shown.words

    def fill(text: str, **more: Any) -> str:
        return Texts().vformat(text, (), values | more)

    tables = []
    for table in texts["tables"]:
        of = values[table["of"]] if "of" in table else {}
        named = of if isinstance(of, Mapping) else dict(enumerate(of, 1))
        rows = [
            [fill(cell, **{"name": name} | entry) for cell in table["cells"]]
            for name, entry in named.items()
        ]
        rows += [[fill(cell) for cell in row] for row in table.get("rows", ())]
        header = [fill(head) for head in table["header"]]
        made = make_table(header, rows, range(table.get("num_texts", 1), len(header)))
        tables.append(replace(made, caption=fill(table["caption"])))
    figures = zip(shown.drawings, texts["figures"], strict=False)
    return Lesson(
        texts=texts,
        tables=tables,
        findings=[finding for finding in map(fill, texts["findings"]) if finding],
        numbers=shown.numbers,
        figures=[(drawing, fill(words[0]), fill(words[-1])) for drawing, words in figures],
    )


def page(subject: Subject, lessons: Mapping[str, Lesson]) -> str:
    """Return one offline HTML file with these topics, by name; names are escaped."""
    return pages.render(
        "explain.html",
        facts=subject.facts(),
        lessons=lessons,
        is_whole=len(lessons) == len(TOPICS),
        **OVERVIEW,
    )
