"""What has to be known to read a study's table: method, uncertainty, circumstances, source."""

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
    "Verdict: undecided where the interval contains 0; replicates where it excludes 0 and contains"
    " the source's drop; opposite where it lies on the other side of 0; smaller or larger where it"
    " lies on the source's side of 0 but excludes the source's drop."
)
DIRECTIONS = (
    "Model, data or length of training are not the source's, so only directions are compared:"
    " same or opposite where the interval excludes 0, undecided where it does not (or where the"
    " source has no drop)."
)


UNCERTAINTY = ("accuracy", "difference", "test", "sampling", "incomplete", "tuning")
"""Notes that say what varies, and how sure the numbers are."""


def notes(doc: StudyResult, found: Sequence[RowStatistics]) -> dict[str, str]:
    """Subject -> the sentences below the table about it; ``found`` is ``compare(doc)``."""
    every = {
        "accuracy": _accuracy(doc),
        "difference": _differences(doc),
        "test": _tests(doc, found),
        "sampling": _sampling(doc),
        "incomplete": _incomplete(found),
        "tuning": _tuning(doc),
        "cost": _cost(doc),
        "training": _training(doc),
        "circumstances": _circumstances(doc),
        "source": _source(doc, found),
        "command": f"Command: {doc.command}",
    }
    return {subject: text for subject, text in every.items() if text}


def _accuracy(doc: StudyResult) -> str:
    images = f"{doc.num_test:,} test images" if doc.num_test else "test images"
    name = doc.headline.label.capitalize()
    return (
        f"n: finished trials, one a seed. {name}: on the {images} after the last epoch (never the"
        " best), mean \u00b1 standard deviation over seeds; a seed sets initialisation, data order"
        " and augmentation."
    )


def _differences(doc: StudyResult) -> str:
    if len(doc.rows) < 2:
        return ""
    return (
        f"Difference: to {doc.rows[0].variant}, in {doc.headline.difference_unit}, paired by seed,"
        " with the 95 % t interval of the paired differences (not adjusted for the number of rows)."
    )


def _tests(doc: StudyResult, found: Sequence[RowStatistics]) -> str:
    if len(found) < 2:
        return ""
    m = num_tests(doc)
    comparisons = "1 comparison" if m == 1 else f"{m} comparisons"
    tested = [row.num_pairs for row in found if row.p is not None]
    few = f"with {comparisons} no p-value can reach 0.05 below {seeds_needed(m)} paired seeds"
    if not tested:
        return f"No test: {few}."
    kind = "exact"
    if max(tested) > MAX_EXACT_PAIRS:
        kind = f"Monte Carlo ({RESAMPLES:,} draws, fixed seed; exact up to {MAX_EXACT_PAIRS} pairs)"
    only = f"; {few}" if len(tested) < len(found) - 1 else ""
    return (
        f"p: {kind} two-sided sign-flip permutation test of the paired differences,"
        f" Holm-adjusted for {comparisons}{only}."
    )


def _sampling(doc: StudyResult) -> str:
    error = sampling_error(doc)
    if error is None:
        return ""
    return (
        f"Sampling error of the test set: \u00b1{error:.2f} points (95 %, normal approximation of"
        f" the binomial) for the baseline with {doc.num_test:,} images. The spread over seeds does"
        " not contain it."
    )


def _incomplete(found: Sequence[RowStatistics]) -> str:
    parts = []
    if any(row.num_unfinished for row in found):
        parts.append("Trials that are not finished are in no number.")
    if any(row.num_diverged for row in found):
        parts.append(
            "A diverged trial is a result without a number: means, differences and intervals are"
            " of the finished trials alone, which flatters their row; there is no p-value then."
        )
    return " ".join(parts)


def _tuning(doc: StudyResult) -> str:
    if not any(row.candidates for row in doc.rows):
        return ""
    return (
        f"Setting: of each variant alone, the best by mean {doc.headline.label} over the seeds on a"
        " validation"
        " split; the test images had no part in the choice."
    )


def _cost(doc: StudyResult) -> str:
    if not doc.compares_models:
        return ""
    return (
        "MFLOP: of a forward pass in matrix products, convolutions and attention, a multiply-add"
        " counted as two. images/s: in training, the median over the seeds; trials that ran at once"
        " slowed each other."
    )


def _training(doc: StudyResult) -> str:
    images = f"{doc.num_train:,} training images" if doc.num_train else ""
    data_hash = f"hash {doc.data_hash[:12]}" if doc.data_hash else ""
    data = ", ".join(part for part in (images, data_hash) if part)
    limit = doc.base_config.get("train.limit_batches")
    short = "" if limit is None else f" of only {limit} batches"
    return f"Training: {_epochs(doc)}{short} on {doc.data}{f' ({data})' if data else ''}."


def _epochs(doc: StudyResult) -> str:
    """The baseline's epochs, and the rows that were trained for another number of them."""
    trained = [
        (row.variant, trial.epochs)
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished" and trial.epochs != doc.epochs
    ]
    others = "".join(f", {variant}: {epochs}" for variant, epochs in dict.fromkeys(trained))
    unit = "epoch" if doc.epochs == 1 else "epochs"
    return f"{doc.epochs} {unit}" + (f" (but{others[1:]})" if others else "")


def _circumstances(doc: StudyResult) -> str:
    commits = ", ".join(commit[:12] for commit in doc.commits)
    facts = [
        " and ".join(doc.hardware),
        f"{doc.threads} CPU thread{'s' if doc.threads > 1 else ''} a trial",
        " and ".join(doc.precision),
        f"{' and '.join(doc.kernels)} kernels" if doc.kernels else "",
        f"torch {' and '.join(doc.torch)}" if doc.torch else "",
        f"commit {commits}" if commits else "",
        "with uncommitted changes" if doc.dirty else "",
        f"not exactly continued: {', '.join(doc.inexact)}" if doc.inexact else "",
        doc.date,
    ]
    return f"Run: {'; '.join(fact for fact in facts if fact)}."


def _source(doc: StudyResult, found: Sequence[RowStatistics]) -> str:
    if doc.reference is None or not doc.reference.rows:
        return ""
    diverged = any(row.verdict in ("diverged", "baseline diverged") for row in found)
    return (
        f"Source: {doc.reference.source}. Its drop: its accuracy of the variant minus that of the"
        " baseline."
        f" {VERDICTS if doc.same_setting else DIRECTIONS}"
        + (" No verdict where a trial of the row or of the baseline diverged." if diverged else "")
    )


def seconds(value: float | None) -> str:
    """A duration as ``31 s``, ``12 min`` or ``2.3 h``."""
    if value is None:
        return ""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
