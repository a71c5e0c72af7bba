"""The tables of the studies in README.md and docs/results.md, and the sentences about them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sentences import study_sentences

if TYPE_CHECKING:
    from vitcli.runner.study.result import StudyResult

RESULTS = Path(__file__).resolve().parents[1] / "experiments" / "results"
SHORT = ("variant", "accuracy, %", "difference [95 % CI]", "p (Holm)", "effect", "diverged")
"""Columns of the table in README."""
COMPARED = (
    "ablation-norm", "ablation-positions", "ablation-patch-size", "ablation-augmentation",
    "study-ingredients", "ablation-fair",
)  # fmt: skip
"""Studies of docs/parts.md."""
BRIEF = ("variant", "parameters", "MFLOP per image", "n", "accuracy, %", "difference [95 % CI]")
"""Columns of the tables in docs/parts.md, whose studies have too few seeds for a p-value."""
BRIEF_NOTES = ("training", "compute", "environment", "command", "one trial")


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
    doc = document(name)
    seeds = max(len(row.trials) for row in doc.rows)
    brief = doc.model_copy(update={"hypothesis": ""})
    return f"{_columns(brief, SHORT)}\n\n{seeds} seeds, {doc.epochs} epochs on {doc.data}."


def study_brief(name: str) -> str:
    """Return the columns that docs/parts.md shows, how the trials ran, and what the rows show."""
    from vitcli.runner.study.notes import notes
    from vitcli.runner.study.statistics import compare

    doc = document(name)
    every = notes(doc, compare(doc))
    table = _columns(doc, BRIEF, tuple(every[subject] for subject in BRIEF_NOTES))
    return f"{table}\n\n**What the table shows:**\n\n{study_says(name)}"


def _columns(doc: "StudyResult", headers: tuple[str, ...], notes: tuple[str, ...] = ()) -> str:
    """Return some columns of the table of a study, with these footnotes only."""
    from vitcli.runner.study.table import build
    from vitcli.runner.tables import to_markdown

    full = build(doc)
    chosen = [i for i, column in enumerate(full.columns) if column.header in headers]
    table = replace(
        full,
        columns=tuple(full.columns[i] for i in chosen),
        rows=tuple(tuple(row[i] for i in chosen) for row in full.rows),
        notes=notes,
    )
    return to_markdown(table).strip()


def draw_forest(*names: str) -> None:
    """Draw the figures of docs/results.md. They are not compared: bytes depend on matplotlib."""
    from vitcli.runner.figure_style import encode
    from vitcli.runner.study.figures import forest

    for name in names:
        (RESULTS / f"{name}.png").write_bytes(encode(partial(forest, document(name)), "png"))


def study_details(name: str) -> str:
    """Return the table of ``vitcli ablate --details``: how certain each difference is."""
    from vitcli.runner.study.table import build_details
    from vitcli.runner.tables import to_markdown

    return to_markdown(build_details(document(name))).strip()


def study_says(name: str) -> str:
    """Return what the rows of a study show, as a list of sentences."""
    from vitcli.runner.study.statistics import compare

    doc = document(name)
    said = study_sentences(compare(doc), same_setting=bool(doc.same_setting))
    return "\n".join(f"- {sentence}" for sentence in said)


def classification_says(name: str) -> str:
    """Return what a short training can say about the accuracies that the source states."""
    from vitcli.runner.study.statistics import compare
    from vitcli.runner.text import join_words, quantity

    doc = document(name)
    base, *variants = compare(doc)
    known = [row for row in variants if row.num_pairs]
    ours = [f"{row.difference:+.2f} points for `{row.variant}`" for row in known]
    theirs = [f"{row.source_drop:+.2f}" for row in known]
    stated = [f"{row.source_score:.1f}" for row in (base, *known)]
    seeds, epochs = min(row.num_pairs for row in known), quantity(doc.epochs, "epoch")
    few = "" if known[0].joint_low is not None else ", too few for an interval"
    return (
        f"After {epochs}, the difference from `{base.variant}` is {join_words(ours)}"
        f" ({quantity(seeds, 'seed')}{few}). The course report states {join_words(theirs)} points"
        f" after 300 epochs. {epochs} show who learns faster, not who ends ahead. So this table"
        f" neither confirms nor refutes {join_words(stated)} %."
    )
