"""The tables of the studies in README.md and docs/results.md, and the sentences about them."""

from dataclasses import replace
from pathlib import Path

from sentences import study_sentences

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results"
SHORT = ("variant", "accuracy, %", "difference [95 % CI]", "p (Holm)", "effect")
"""Columns of the table in README."""


def study(name: str) -> str:
    """Return the table of a study with its footnotes, as ``vitcli ablate --format md`` does."""
    from vitcli.runner.study.table import read_document, render

    path = RESULTS / f"{name}.json"
    return render(read_document(path.read_text()), "md") if path.exists() else ""


def study_short(name: str) -> str:
    """Return the columns of a study that README shows, and the length of its trainings."""
    from vitcli.runner.study.table import WRITERS, build, read_document

    doc = read_document((RESULTS / f"{name}.json").read_text())
    full = build(doc)
    chosen = [i for i, column in enumerate(full.columns) if column.header in SHORT]
    table = replace(
        full,
        columns=tuple(full.columns[i] for i in chosen),
        rows=tuple(tuple(row[i] for i in chosen) for row in full.rows),
        notes=(),
    )
    trials = [trial for row in doc.rows for trial in row.trials]
    seeds, epochs = len({t.seed for t in trials}), max(t.epochs for t in trials if t.epochs)
    return f"{WRITERS['md'](table).strip()}\n\n{seeds} seeds, {epochs} epochs on CIFAR-10."


def study_details(name: str) -> str:
    """Return the table of ``vitcli ablate --details``: how certain each difference is."""
    from vitcli.runner.study.table import WRITERS, build_details, read_document

    doc = read_document((RESULTS / f"{name}.json").read_text())
    return WRITERS["md"](build_details(doc)).strip()


def study_says(name: str) -> str:
    """Return what the rows of a study show, as a list of sentences."""
    from vitcli.runner.study.statistics import compare
    from vitcli.runner.study.table import read_document

    path = RESULTS / f"{name}.json"
    if not path.exists():
        return ""
    doc = read_document(path.read_text())
    said = study_sentences(compare(doc), same_setting=bool(doc.same_setting))
    return "\n".join(f"- {sentence}" for sentence in said)
