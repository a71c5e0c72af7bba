"""HTML pages: each one file without network, whose values are escaped unless ``Markup``."""

import base64
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from vitcli.runner.report.tables import Table, html_text, latex_text, to_ascii
from vitcli.runner.text import quantity, rough_duration, signed


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def source(name: str) -> Markup:
    loader = _environment().loader
    assert loader is not None
    return Markup(loader.get_source(_environment(), name)[0])


def sources(*names: str) -> Markup:
    return Markup("\n").join(map(source, names))


def data_uri(kind: str, content: bytes) -> str:
    """Return a picture to embed; ``kind`` is such as ``png`` or ``svg+xml``."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def embedded_figures(
    figures: Mapping[str, bytes], captions: Mapping[str, str], describe: Callable[[str], str]
) -> list[dict[str, str]]:
    return [
        {
            "source": data_uri("svg+xml", figures[f"{name}.svg"]),
            "alt": describe(name),
            "caption": caption,
        }
        for name, caption in captions.items()
        if f"{name}.svg" in figures
    ]


def decimals(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def to_html(table: Table) -> Markup:
    return Markup(render("table.html", table=table))


def to_latex(table: Table) -> str:
    """Return a ``table`` environment for ``\\usepackage{booktabs,graphicx}``.

    A table that is wider than the page's lines is scaled down to their width. The notes are
    comments below it.
    """
    label = re.sub(r"[^A-Za-z0-9]+", "-", to_ascii(table.name)).strip("-")
    return render("table.tex", table=table, label=label)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vitcli.runner"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "table": to_html,
        "words": lambda text: Markup(html_text(text)),
        "latex": latex_text,
        "ascii": to_ascii,
        "lines": partial(textwrap.wrap, break_long_words=False),
        "signed": signed,
        "decimals": decimals,
        "duration": rough_duration,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
    }
    environment.globals["quantity"] = quantity
    return environment
