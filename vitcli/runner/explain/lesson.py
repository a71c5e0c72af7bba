"""What a topic shows: sentences, a formula, tables of live numbers, drawings, commands to try."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

SCRIPT = re.compile(r"([_^])\{([^{}]*)\}")
"""A subscript or superscript of a formula: ``_{ij}`` or ``^{T}``."""


@dataclass(frozen=True, kw_only=True)
class LiveTable:
    """A table of numbers. All columns but the first ``num_texts`` hold numbers."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_texts: int = 1

    @property
    def numeric(self) -> range:
        return range(self.num_texts, len(self.header))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure of the page, as HTML that is already safe."""

    html: Markup
    caption: str


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A topic on one model and one picture."""

    title: str
    idea: str
    formula: str
    """Scripts are written ``_{ij}`` and ``^{T}``; lines are separated by a newline."""
    tables: Sequence[LiveTable]
    findings: Sequence[str]
    """Sentences that hold numbers."""
    tries: Sequence[tuple[str, str]]
    """Command and what it shows."""
    numbers: dict[str, Any]
    """The numbers of the tables and findings, unrounded, as JSON values."""
    drawings: Sequence[Drawing] = field(default=(), repr=False)

    @property
    def formula_text(self) -> str:
        """Return the formula for a terminal, such as ``Q K^T`` and ``a_ij``."""
        return SCRIPT.sub(
            lambda m: f"{m[1]}{m[2] if m[2].isalnum() else f'({m[2]})'}", self.formula
        )

    @property
    def formula_html(self) -> Markup:
        """Return the formula with <sub> and <sup>."""
        tags = {"_": "sub", "^": "sup"}
        html = SCRIPT.sub(
            lambda m: f"<{tags[m[1]]}>{m[2]}</{tags[m[1]]}>", str(escape(self.formula))
        )
        return Markup(html.replace("\n", "<br>"))


def error(value: float) -> str:
    """Return the size of a rounding error, such as ``2e-07``; ``0`` if there is none."""
    return f"{value:.0e}" if value else "0"


def shape(sizes: Iterable[int]) -> str:
    """Return a shape such as ``(1, 4, 64, 32)`` or ``(128,)``."""
    return str(tuple(sizes))
