"""Statistics of a study: pure functions of its document, in the unit of its headline number.

Only finished trials have numbers. Differences are taken from the first row, the baseline. Each pair
of trials has the same seed, so it shares initialisation, data order and augmentation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import special

from vitcli.core.spec.task import Metric
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.significance import (
    ALPHA,
    MIN_PAIRS,
    correlation,
    detectable,
    holm,
    pairing_ratio,
    probability_below,
    rounded,
    seeds_needed,
    sign_flip_p,
    standard_error,
    t_interval,
    t_tail,
)
from vitcli.runner.study.verdicts import Effect, Verdict, effect, judge


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
    """Sample standard deviation over the seeds (n - 1 in the denominator), on these test images."""
    seed_spread: float | None
    """Standard deviation over the seeds that an endless test set would show."""
    seconds_mean: float | None
    """Training time of a finished trial, with its pre-training."""
    seconds_total: float | None
    num_pairs: int = 0
    """Number of seeds that finished both here and in the baseline."""
    difference: float | None = None
    """Mean over the pairs: score here minus score of the baseline."""
    ci_low: float | None = None
    ci_high: float | None = None
    """95 % t interval of the mean difference, for new seeds and, if ``with_images``, new test
    images. It is not adjusted for the number of variants. None for fewer than three pairs."""
    with_images: bool = False
    """Whether predictions are known, so that intervals and tests include the chance of the test
    images."""
    joint_low: float | None = None
    joint_high: float | None = None
    """Interval at level 1 - 0.05 / m (Bonferroni): the intervals of all variants hold together."""
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None
    """95 % percentile interval of a bootstrap over seeds and images."""
    p: float | None = None
    """Two-sided p of the mean difference: the larger of a sign-flip test over seeds and, if
    ``with_images``, the t test of the joint interval."""
    p_holm: float | None = None
    p_equivalent: float | None = None
    """p of two one-sided tests that the difference lies within the declared margin."""
    p_equivalent_holm: float | None = None
    seeds_missing: int | None = None
    """Number of pairs that the test still needs, if there are too few and more would help."""
    below: float | None = None
    below_low: float | None = None
    below_high: float | None = None
    """Probability that a training of the variant scores below that of the baseline with the same
    seed."""
    correlation: float | None = None
    """Correlation of the scores with those of the baseline over the seeds."""
    pairing: float | None = None
    """Spread of the paired differences over that of unpaired ones; below 1, pairing helps."""
    detectable: float | None = None
    """Difference that this many seeds find with probability 0.8 at level 0.05 / m: by both tests
    of ``p``, or by the joint interval if there are too few seeds for a p."""
    effect: Effect | None = None
    source_score: float | None = None
    source_drop: float | None = None
    """The source's accuracy of the variant minus that of the baseline; a loss is negative."""
    verdict: Verdict | None = None


def compare(doc: StudyResult) -> tuple[RowStatistics, ...]:
    """Return the statistics of each row, in the order of the rows; the first is the baseline.

    p-values are Holm-adjusted over all variants of the study, shown or not. A row without a p-value
    counts as p = 1, so it never makes another row's p-value smaller.

    Tables, figures and page of a document ask for the same numbers, so the last ones are kept.
    """
    if not (_LATEST and _LATEST[0][0] is doc):
        _LATEST[:] = [(doc, _compare(doc))]
    return _LATEST[0][1]


_LATEST: list[tuple[StudyResult, tuple[RowStatistics, ...]]] = []
"""The last document that was compared, and its numbers."""


def _compare(doc: StudyResult) -> tuple[RowStatistics, ...]:
    if not doc.rows:
        return ()
    baseline, *variants = doc.rows
    rows = [_compare_row(_describe_row(row, doc), row, baseline, doc) for row in variants]
    adjusted = holm([row.p for row in rows], num_tests(doc))
    equivalent = holm([row.p_equivalent for row in rows], num_tests(doc))
    rows = [
        _conclude(replace(found, p_holm=p, p_equivalent_holm=same), row, baseline, doc)
        for found, row, p, same in zip(rows, variants, adjusted, equivalent, strict=True)
    ]
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
        score_mean=rounded(np.mean(values)) if values else None,
        score_sd=rounded(np.std(values, ddof=1)) if len(values) > 1 else None,
        seed_spread=rounded(row.images.seed_spread) if row.images else None,
        seconds_mean=float(np.mean(seconds)) if seconds else None,
        seconds_total=float(np.sum(seconds)) if seconds else None,
        source_score=source.accuracy if source else None,
    )


def _compare_row(
    described: RowStatistics, row: VariantResult, baseline: VariantResult, doc: StudyResult
) -> RowStatistics:
    """Return the statistics of a row with its differences from the baseline."""
    mine, other = scores(row, doc.headline), scores(baseline, doc.headline)
    seeds = [seed for seed in mine if seed in other]
    ours, theirs = [mine[seed] for seed in seeds], [other[seed] for seed in seeds]
    differences = [rounded(a - b) for a, b in zip(ours, theirs, strict=True)]
    pairs, needed = len(differences), seeds_needed(num_tests(doc))
    found = replace(
        described,
        num_pairs=pairs,
        difference=rounded(np.mean(differences)) if differences else None,
        seeds_missing=None if pairs >= needed or _has_diverged(row, baseline) else needed - pairs,
        source_drop=source_drop(doc, row.variant),
    )
    if pairs < MIN_PAIRS:
        return found
    below, (low, high) = probability_below(ours, theirs)
    found = replace(
        found,
        below=below,
        below_low=low,
        below_high=high,
        correlation=correlation(ours, theirs),
        pairing=pairing_ratio(ours, theirs),
    )
    return _with_error(found, row, baseline, differences, doc)


def _with_error(
    found: RowStatistics,
    row: VariantResult,
    baseline: VariantResult,
    differences: Sequence[float],
    doc: StudyResult,
) -> RowStatistics:
    """Return a row with the numbers that follow from the standard error of its difference."""
    m, known = num_tests(doc), row.contrast
    size = abs(float(np.mean(differences)))
    tail: Callable[[float], float]
    if known is None:
        error = standard_error(differences)
        plain, joint = (t_interval(differences, alpha) for alpha in (ALPHA, ALPHA / m))
        tail = partial(t_tail, error=error, freedom=len(differences) - 1)
    else:
        crossed = known.crossed
        error, tail = crossed.error, crossed.tail
        plain, joint = crossed.interval(ALPHA), crossed.careful_interval(ALPHA / m)
    (low, high), (joint_low, joint_high) = [(rounded(a), rounded(b)) for a, b in (plain, joint)]
    is_valid = not _has_diverged(row, baseline)
    p = sign_flip_p(differences) if is_valid and len(differences) >= seeds_needed(m) else None
    if p is not None and known is not None:
        p = max(p, 2 * tail(size))
    # Two one-sided tests: Schuirmann 1987, https://doi.org/10.1007/BF01068419
    margin = doc.margin.points if doc.margin and is_valid else None
    return replace(
        found,
        ci_low=low,
        ci_high=high,
        with_images=known is not None,
        joint_low=joint_low,
        joint_high=joint_high,
        bootstrap_low=known.bootstrap_low if known else None,
        bootstrap_high=known.bootstrap_high if known else None,
        p=p,
        p_equivalent=tail(margin - size) if margin else None,
        detectable=_detectable(differences, error, m),
    )


def _detectable(differences: Sequence[float], error: float, m: int) -> float:
    """Return the smallest detectable difference; ``error`` includes the test images, if known."""
    of_seeds = standard_error(differences)
    of_images = max(0.0, error**2 - of_seeds**2) ** 0.5
    spread, pairs = of_seeds * len(differences) ** 0.5, len(differences)
    return rounded(detectable(spread, pairs, m, images_error=of_images))


def _conclude(
    found: RowStatistics, row: VariantResult, baseline: VariantResult, doc: StudyResult
) -> RowStatistics:
    """Return a row with its effect and its verdict."""
    shown = None
    if _is_whole(row, baseline) and found.difference is not None and found.ci_low is not None:
        shown = effect(
            found.difference,
            found.p_holm,
            found.p_equivalent_holm,
            higher_is_better=doc.headline.higher_is_better,
        )
    return replace(found, effect=shown, verdict=_verdict(found, (row, baseline), doc))


def _has_diverged(*rows: VariantResult) -> bool:
    """Return whether a trial of the rows diverged.

    The other trials are then a biased sample, for which no test is valid.
    """
    return any(trial.state == "diverged" for row in rows for trial in row.trials)


def _is_whole(*rows: VariantResult) -> bool:
    """Return whether every trial of the rows has finished."""
    return all(trial.state == "finished" for row in rows for trial in row.trials)


def source_drop(doc: StudyResult, variant: str) -> float | None:
    """Return the source's accuracy of a variant minus that of the baseline; None unless known."""
    rows = doc.reference.rows if doc.reference else {}
    if variant not in rows or doc.rows[0].variant not in rows:
        return None
    return rounded(rows[variant].accuracy - rows[doc.rows[0].variant].accuracy)


def _verdict(
    found: RowStatistics, pair: tuple[VariantResult, VariantResult], doc: StudyResult
) -> Verdict | None:
    drop, low, high = found.source_drop, found.joint_low, found.joint_high
    if drop is None:
        return None
    if _has_diverged(*pair):
        return "diverged" if _has_diverged(pair[0]) else "baseline diverged"
    if not _is_whole(*pair):
        return "incomplete"
    if low is None or high is None:
        return None
    return judge(low, high, drop, same_setting=doc.same_setting)


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
    z = special.ndtri(1 - ALPHA / 2)
    return rounded(100 * z * (share * (1 - share) / doc.num_test) ** 0.5)
