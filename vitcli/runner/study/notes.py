"""Notes below a study's table: method, uncertainty, environment and source."""

from collections.abc import Sequence

from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import (
    MAX_EXACT_PAIRS,
    RESAMPLES,
    RowStatistics,
    num_tests,
    sampling_error,
    seeds_needed,
)

VERDICTS = (
    "Verdict: undecided if the interval contains 0; replicates if it excludes 0 and contains the"
    " source's drop; opposite if it lies on the other side of 0; smaller or larger if it lies on"
    " the source's side of 0 but excludes the source's drop."
)
DIRECTIONS = (
    "Model, data or length of training differ from the source's, so only directions are compared:"
    " same or opposite if the interval excludes 0; undecided if it contains 0 or if the source's"
    " drop is 0."
)
UNCERTAINTY = ("score", "difference", "test", "sampling", "incomplete", "tuning")
"""Notes that say what varies and how certain the numbers are."""


def notes(doc: StudyResult, rows: Sequence[RowStatistics]) -> dict[str, str]:
    """Return subject -> its sentences below the table; ``rows`` is ``compare(doc)``."""
    every = {
        "score": _score(doc),
        "difference": _differences(doc),
        "test": _tests(doc, rows),
        "sampling": _sampling(doc),
        "incomplete": _incomplete(rows),
        "tuning": _tuning(doc),
        "cost": _cost(doc),
        "training": _training(doc),
        "environment": _environment(doc),
        "source": _source(doc, rows),
        "command": f"Command: {doc.command}",
    }
    return {subject: text for subject, text in every.items() if text}


def _score(doc: StudyResult) -> str:
    images = f"{doc.num_test:,} test images" if doc.num_test else "test images"
    name = capitalize(doc.headline.label)
    return (
        f"n: number of finished trials, one per seed. {name}: on the {images} after the last epoch"
        " (never the best epoch), mean \u00b1 standard deviation over seeds. A seed sets"
        " initialisation, data order and augmentation."
    )


def _differences(doc: StudyResult) -> str:
    if len(doc.rows) < 2:
        return ""
    return (
        f"Difference: from {doc.rows[0].variant}, in {doc.headline.difference_unit}, paired by"
        " seed, with the 95 % t interval of the paired differences (not adjusted for the number of"
        " rows)."
    )


def _tests(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if len(rows) < 2:
        return ""
    m = num_tests(doc)
    comparisons = "1 comparison" if m == 1 else f"{m} comparisons"
    tested = [row.num_pairs for row in rows if row.p is not None]
    needed = seeds_needed(m)
    few = f"with {comparisons}, no p-value can reach 0.05 with fewer than {needed} paired seeds"
    if not tested:
        return f"No test: {few}."
    kind = "exact"
    if max(tested) > MAX_EXACT_PAIRS:
        kind = f"Monte Carlo ({RESAMPLES:,} draws, fixed seed; exact up to {MAX_EXACT_PAIRS} pairs)"
    only = f"; {few}" if len(tested) < len(rows) - 1 else ""
    return (
        f"p: {kind} two-sided sign-flip permutation test of the paired differences,"
        f" Holm-adjusted for {comparisons}{only}."
    )


def _sampling(doc: StudyResult) -> str:
    error = sampling_error(doc)
    if error is None:
        return ""
    return (
        f"Sampling error of the test set: \u00b1{error:.{doc.headline.digits}f} points (95 %,"
        f" normal approximation of the binomial) for the baseline with {doc.num_test:,} images."
        " The spread over seeds does not include it."
    )


def _incomplete(rows: Sequence[RowStatistics]) -> str:
    parts = []
    if any(row.num_unfinished for row in rows):
        parts.append("The numbers do not include unfinished trials.")
    if any(row.num_diverged for row in rows):
        parts.append(
            "A diverged trial counts as a result but has no number. Means, differences and"
            " intervals use the finished trials only, which makes the row look better than it is;"
            " the row has no p-value."
        )
    return " ".join(parts)


def _tuning(doc: StudyResult) -> str:
    if not any(row.candidates for row in doc.rows):
        return ""
    return (
        f"Setting: chosen for each variant alone, by the best mean {doc.headline.label} over the"
        " seeds on a validation split. The test images played no part in the choice."
    )


def _cost(doc: StudyResult) -> str:
    if not doc.compares_models:
        return ""
    return (
        "MFLOP: matrix products, convolutions and attention in one forward pass; a multiply-add"
        " counts as two operations. images/s: training speed, median over the seeds; trials that"
        " ran at the same time slowed each other."
    )


def _training(doc: StudyResult) -> str:
    images = f"{doc.num_train:,} training images" if doc.num_train else ""
    data_hash = f"hash {doc.data_hash[:12]}" if doc.data_hash else ""
    data = ", ".join(part for part in (images, data_hash) if part)
    limit = doc.base_config.get("train.limit_batches")
    short = "" if limit is None else f" of only {limit} batches"
    return f"Training: {_epochs(doc)}{short} on {doc.data}{f' ({data})' if data else ''}."


def _epochs(doc: StudyResult) -> str:
    """Return the baseline's epochs, and the rows that were trained for another number."""
    trained = [
        (row.variant, trial.epochs)
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished" and trial.epochs != doc.epochs
    ]
    others = "".join(f", {variant}: {epochs}" for variant, epochs in dict.fromkeys(trained))
    unit = "epoch" if doc.epochs == 1 else "epochs"
    return f"{doc.epochs} {unit}" + (f" (but{others[1:]})" if others else "")


def _environment(doc: StudyResult) -> str:
    commits = ", ".join(commit[:12] for commit in doc.commits)
    facts = [
        " and ".join(doc.hardware),
        f"{doc.threads} CPU thread{'s' if doc.threads > 1 else ''} per trial",
        " and ".join(doc.precision),
        f"{' and '.join(doc.kernels)} kernels" if doc.kernels else "",
        f"torch {' and '.join(doc.torch)}" if doc.torch else "",
        f"commit {commits}" if commits else "",
        "with uncommitted changes" if doc.dirty else "",
        f"continued, not bit-identical: {', '.join(doc.inexact)}" if doc.inexact else "",
        doc.date,
    ]
    return f"Run: {'; '.join(fact for fact in facts if fact)}."


def _source(doc: StudyResult, rows: Sequence[RowStatistics]) -> str:
    if doc.reference is None or not doc.reference.rows:
        return ""
    diverged = any(row.verdict in ("diverged", "baseline diverged") for row in rows)
    label = doc.headline.label
    return (
        f"Source: {doc.reference.source}. Source's drop: the source's {label} of the"
        f" variant minus the source's {label} of the baseline."
        f" {VERDICTS if doc.same_setting else DIRECTIONS}"
        + (
            " A row with a diverged trial, or a diverged baseline, has no verdict."
            if diverged
            else ""
        )
    )


def capitalize(text: str) -> str:
    """Return a text with a capital first letter; the other letters do not change."""
    return text[:1].upper() + text[1:]


def format_seconds(value: float | None) -> str:
    """Return a duration such as ``31 s``, ``12 min`` or ``2.3 h``; empty for None."""
    if value is None:
        return ""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
