"""Statistics of a study: pure functions of its document, in the unit of its headline number.

Only finished trials have numbers. Differences are taken from the first row, the baseline. Each pair
of trials has the same seed, so it shares initialisation, data order and augmentation.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vitcli.core.spec.task import Metric
from vitcli.runner.study.result import StudyResult, VariantResult

Verdict = Literal[
    "replicates",
    "smaller",
    "larger",
    "same",
    "opposite",
    "undecided",
    "diverged",
    "baseline diverged",
]

ALPHA = 0.05
"""Intervals have level 1 - ALPHA. A p-value is given only if it could be as small as ALPHA."""
RESAMPLES = 99_999
"""Number of random sign flips, if there are more than that many sign patterns."""
MAX_EXACT_PAIRS = 16
"""Largest number of pairs with an exact test: 2^16 <= RESAMPLES < 2^17."""


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Statistics of one variant.

    Scores and differences are in the headline's unit (percent), times in seconds. A number that the
    finished trials do not give is None.
    """

    variant: str
    n: int
    """Number of finished trials. The mean is taken over them."""
    num_diverged: int
    num_unfinished: int
    """Failed, interrupted, running, stale or missing."""
    score_mean: float | None
    score_sd: float | None
    """Sample standard deviation over the seeds (n - 1 in the denominator)."""
    seconds_mean: float | None
    """Training time of a finished trial, with its pre-training."""
    seconds_total: float | None
    num_pairs: int = 0
    """Number of seeds that finished both here and in the baseline."""
    difference: float | None = None
    """Mean over the pairs: score here minus score of the baseline."""
    ci_low: float | None = None
    ci_high: float | None = None
    """95 % t interval of the mean difference; not adjusted for the number of variants."""
    p: float | None = None
    """Two-sided sign-flip permutation test of the mean difference."""
    p_holm: float | None = None
    seeds_missing: int | None = None
    """Number of pairs that the test still needs, if there are too few."""
    source_score: float | None = None
    source_drop: float | None = None
    """The source's accuracy of the variant minus that of the baseline; a loss is negative."""
    verdict: Verdict | None = None


def compare(doc: StudyResult) -> tuple[RowStatistics, ...]:
    """Return the statistics of each row, in the order of the rows; the first is the baseline.

    p-values are Holm-adjusted over all variants of the study, shown or not. A row without a p-value
    counts as p = 1, so it never makes another row's p-value smaller.
    """
    if not doc.rows:
        return ()
    baseline, *variants = doc.rows
    rows = [_compare_row(_describe_row(row, doc), row, baseline, doc) for row in variants]
    adjusted = holm([row.p for row in rows], num_tests(doc))
    rows = [replace(row, p_holm=p) for row, p in zip(rows, adjusted, strict=True)]
    return (_describe_row(baseline, doc), *rows)


def scores(row: VariantResult, headline: Metric) -> dict[int, float]:
    """Return seed -> headline number of the finished trials, in the written unit (percent)."""
    found = {
        trial.seed: trial.number(f"test_{headline.name}")
        for trial in row.trials
        if trial.state == "finished"
    }
    return {seed: headline.scale * value for seed, value in found.items() if value is not None}


def num_tests(doc: StudyResult) -> int:
    """Return the number of comparisons: m in Holm's correction."""
    return max(doc.num_comparisons, len(doc.rows) - 1)


def seeds_needed(num_tests: int) -> int:
    """Return the fewest pairs with which a p-value can be significant.

    The smallest possible p, 2 / 2^pairs, must survive Holm's first step.
    """
    return next(n for n in itertools.count(2) if num_tests * 2 / 2**n <= ALPHA)


def _describe_row(row: VariantResult, doc: StudyResult) -> RowStatistics:
    """Return the statistics of a row alone, without differences."""
    values = list(scores(row, doc.headline).values())
    diverged = sum(trial.state == "diverged" for trial in row.trials)
    seconds = [
        trial.train_seconds + trial.measured.get("pretrain_seconds", 0.0)
        for trial in row.trials
        if trial.state == "finished" and trial.train_seconds is not None
    ]
    source = doc.reference.rows.get(row.variant) if doc.reference else None
    return RowStatistics(
        variant=row.variant,
        n=len(values),
        num_diverged=diverged,
        num_unfinished=len(row.trials) - len(values) - diverged,
        score_mean=_round(np.mean(values)) if values else None,
        score_sd=_round(np.std(values, ddof=1)) if len(values) > 1 else None,
        seconds_mean=float(np.mean(seconds)) if seconds else None,
        seconds_total=float(np.sum(seconds)) if seconds else None,
        source_score=source.accuracy if source else None,
    )


def _compare_row(
    described: RowStatistics, row: VariantResult, baseline: VariantResult, doc: StudyResult
) -> RowStatistics:
    """Return the statistics of a row with its differences from the baseline."""
    ours, theirs = scores(row, doc.headline), scores(baseline, doc.headline)
    differences = [_round(ours[seed] - theirs[seed]) for seed in ours if seed in theirs]
    pairs, needed = len(differences), seeds_needed(num_tests(doc))
    is_complete = not _has_diverged(row, baseline)
    low, high = t_interval(differences) if pairs > 1 else (None, None)
    drop = source_drop(doc, row.variant)
    return replace(
        described,
        num_pairs=pairs,
        difference=_round(np.mean(differences)) if differences else None,
        ci_low=low,
        ci_high=high,
        p=sign_flip_p(differences) if pairs >= needed and is_complete else None,
        seeds_missing=needed - pairs if pairs < needed else None,
        source_drop=drop,
        verdict=_verdict((row, baseline), low, high, drop, doc),
    )


def _has_diverged(*rows: VariantResult) -> bool:
    """Return whether a trial of the rows diverged.

    The other trials are then a biased sample, for which no test is valid.
    """
    return any(trial.state == "diverged" for row in rows for trial in row.trials)


def _round(value: float | np.floating) -> float:
    """Return a value without the rounding noise of floats.

    The noise would make 84.4 - 93.1 differ from -8.7, and would break ties.
    """
    return round(float(value), 9)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean +- t(0.975, n - 1) sd / sqrt(n) of at least two values.

    The width is zero if all values are equal.
    """
    mean, error = np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5
    half = stats.t.ppf(1 - ALPHA / 2, len(values) - 1) * error
    return _round(mean - half), _round(mean + half)


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    return np.round(values.mean(axis=axis), 9)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the mean difference.

    If variant and baseline are the same, each pair's sign is a coin toss. The test is exact up to
    16 pairs; for more pairs it draws 99,999 sign patterns with a fixed seed.
    """
    result = stats.permutation_test(
        (np.array(differences),),
        _mean,
        permutation_type="samples",
        n_resamples=RESAMPLES,
        random_state=0,
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float | None], m: int) -> list[float | None]:
    """Return step-down adjusted p-values of m tests; a missing p counts as 1 and stays missing.

    The i-th smallest (from 0) becomes max over j <= i of min(1, (m - j) p_j).
    Reference: Holm 1979, https://www.jstor.org/stable/4615733
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (m - rank) * p))
        adjusted[i] = largest
    return adjusted


def source_drop(doc: StudyResult, variant: str) -> float | None:
    """Return the source's accuracy of a variant minus that of the baseline; None unless known."""
    rows = doc.reference.rows if doc.reference else {}
    if variant not in rows or doc.rows[0].variant not in rows:
        return None
    return _round(rows[variant].accuracy - rows[doc.rows[0].variant].accuracy)


def _verdict(
    pair: tuple[VariantResult, VariantResult],
    low: float | None,
    high: float | None,
    drop: float | None,
    doc: StudyResult,
) -> Verdict | None:
    if drop is None:
        return None
    if _has_diverged(*pair):
        return "diverged" if _has_diverged(pair[0]) else "baseline diverged"
    if low is None or high is None:
        return None
    return judge(low, high, drop, same_setting=doc.same_setting)


def judge(low: float, high: float, drop: float, *, same_setting: bool) -> Verdict:
    """Return the verdict on the interval of our difference, given the source's drop.

    undecided: the interval contains 0. replicates: the interval excludes 0 and contains the drop.
    opposite: the interval and the drop lie on different sides of 0. smaller, larger: both lie on
    the same side, and the interval excludes the drop. In another setting sizes mean nothing, so the
    verdict is same, opposite or undecided. A drop of exactly 0 has no direction: in the same
    setting any difference is larger, in another setting the direction is undecided.
    """
    if low <= 0 <= high:
        return "undecided"
    same_side = (low > 0) == (drop > 0)
    if not same_setting:
        return "undecided" if drop == 0 else "same" if same_side else "opposite"
    if drop == 0:
        return "larger"
    if not same_side:
        return "opposite"
    if low <= drop <= high:
        return "replicates"
    return "smaller" if abs(low + high) / 2 < abs(drop) else "larger"


def sampling_error(doc: StudyResult) -> float | None:
    """Return the half-width in points of the 95 % interval of the baseline's accuracy.

    It is the error from the choice of test images, not a spread over seeds: 1.96 sqrt(a (1 - a) /
    num_test), the normal approximation of the binomial. It is 0 if no image, or every image, is
    classified correctly.
    """
    baseline = _describe_row(doc.rows[0], doc).score_mean if doc.rows else None
    if baseline is None or not doc.num_test or doc.headline.unit != "%":
        return None
    share = baseline / 100
    z = stats.norm.ppf(1 - ALPHA / 2)
    return _round(100 * z * (share * (1 - share) / doc.num_test) ** 0.5)
