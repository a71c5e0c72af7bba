"""Cells of a study's tables, as text."""

from collections.abc import Callable
from dataclasses import dataclass

from vitcli.runner.study.result import VariantResult
from vitcli.runner.study.statistics import RowStatistics
from vitcli.runner.tables import Column


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of the document and its statistics."""

    row: VariantResult
    found: RowStatistics
    is_baseline: bool
    digits: int
    """Number of decimal places of scores and differences."""


FilledColumn = tuple[Column, Callable[[TableRow], str]]
"""A column and the function that returns its cell in a row."""


def signed(value: float | None, digits: int) -> str:
    """Return a difference with its sign and ``digits`` decimal places; zero has no sign."""
    if value is None:
        return ""
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "\u2212")


def interval(low: float | None, high: float | None, digits: int) -> str:
    """Return an interval of differences in brackets; empty if it is not known."""
    if low is None or high is None:
        return ""
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def plain(value: float | None, digits: int) -> str:
    """Return a number without a plus sign; empty if it is not known."""
    return "" if value is None else f"{value:.{digits}f}".replace("-", "\u2212")


def p_text(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
