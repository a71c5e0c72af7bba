"""The tables of docs/results/judged.md, from tests/judges/figures.json."""

import json
from functools import cache
from typing import Any

from study_tables import ROOT

from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.text import quantity

FIGURES = ROOT / "tests" / "judges" / "figures.json"


@cache
def judges() -> dict[str, Any]:
    """Return each judge with its version, its licence, what it decides and its figures."""
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def judges_table() -> str:
    """Return a row for each judge."""
    rows = [
        [name, each["version"], each["licence"], each["decides"], str(len(each["figures"]))]
        for name, each in judges().items()
    ]
    return markdown_grid(("judge", "version", "licence", "decides", "figures"), rows, [4])


def figures_table() -> str:
    """Return a row for each figure: both numbers, their difference and the largest allowed one."""
    rows = [
        [name, what, *(shown(each[key], each["count"]) for key in ("ours", "theirs"))]
        + [f"{each[key]:.2g}" for key in ("difference", "within")]
        for name, judge in judges().items()
        for what, each in judge["figures"].items()
    ]
    header = ("judge", "figure", "vitcli", "the judge", "difference", "allowed")
    return markdown_grid(header, rows, range(2, 6))


def shown(value: Any, count: int) -> str:
    """Return a number, or how many there are."""
    return f"{value:.7g}" if isinstance(value, float | int) else quantity(count, "number")
