"""The tables of the studies in README.md and docs/results.md, and the sentences about them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sentences import study_sentences

if TYPE_CHECKING:
    from vitcli.runner.study.result import StudyResult

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results"
SHORT = ("variant", "accuracy, %", "difference [95 % CI]", "p (Holm)", "effect")
"""Columns of the table in README."""


def document(name: str) -> "StudyResult":
    """Return the committed result of a study."""
    from vitcli.runner.study.table import read_document

    return read_document((RESULTS / f"{name}.json").read_text())


def study(name: str) -> str:
    """Return the table of a study with its footnotes, as ``vitcli ablate --format md`` does."""
    from vitcli.runner.study.table import render

    return render(document(name), "md")


def study_short(name: str) -> str:
    """Return the columns of a study that README shows, and the length of its trainings."""
    from vitcli.runner.study.formats import to_markdown
    from vitcli.runner.study.table import build

    doc = document(name)
    full = build(doc)
    chosen = [i for i, column in enumerate(full.columns) if column.header in SHORT]
    table = replace(
        full,
        columns=tuple(full.columns[i] for i in chosen),
        rows=tuple(tuple(row[i] for i in chosen) for row in full.rows),
        notes=(),
    )
    seeds = max(len(row.trials) for row in doc.rows)
    return f"{to_markdown(table).strip()}\n\n{seeds} seeds, {doc.epochs} epochs on {doc.data}."


def study_details(name: str) -> str:
    """Return the table of ``vitcli ablate --details``: how certain each difference is."""
    from vitcli.runner.study.formats import to_markdown
    from vitcli.runner.study.table import build_details

    return to_markdown(build_details(document(name))).strip()


def study_says(name: str) -> str:
    """Return what the rows of a study show, as a list of sentences."""
    from vitcli.runner.study.statistics import compare

    doc = document(name)
    said = study_sentences(compare(doc), same_setting=bool(doc.same_setting))
    return "\n".join(f"- {sentence}" for sentence in said)
