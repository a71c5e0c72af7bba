"""A made-up study, and the cells of its table."""

from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import build

ROWS: dict[str, list[float | str]] = {
    "baseline": [0.931, 0.934, 0.928],
    "no-ffn": [0.867, 0.868, 0.866],
    "no-residual": [0.8, "diverged", 0.81],
    "single-head": [0.93, "missing", "missing"],
    "no-layernorm": ["diverged", "diverged", "diverged"],
    "wide": ["failed", "running", "running"],
}
SOURCE = {"baseline": 93.1, "no-ffn": 86.7, "no-residual": 81.0, "single-head": 89.9}


def cells(doc: StudyResult) -> list[dict[str, str]]:
    table = build(doc)
    heads = [column.header for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def cell(doc: StudyResult, variant: str, header: str) -> str:
    return next(row[header] for row in cells(doc) if row["variant"] == variant)
