"""Statistics of a study: pure functions of its document, in the unit of its headline number.

Only finished trials have numbers. Differences are taken from the first row, the baseline. Each pair
of trials has the same seed, so it shares initialisation, data order and augmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from vitcli.core.spec.metrics import Metric
from vitcli.runner.study.judgement import (
    Agreement,
    Effect,
    Withheld,
    compare_with_source,
    judge_difference,
    withheld,
)
from vitcli.runner.study.mean_error import MeanError, SeedVariance, pool_seed_variance
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.significance import (
    ALPHA,
    MIN_PAIRS,
    detectable,
    detectable_by_t,
    holm,
    pairing_ratio,
    probability_below,
    rounded,
    seeds_needed,
    sign_flip_p,
)


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
    images; with folds, for new images. It is not adjusted for the number of variants. None for
    fewer than three pairs."""
    with_images: bool = False
    """Whether predictions are known, so that intervals and tests include the chance of the test
    images."""
    joint_low: float | None = None
    joint_high: float | None = None
    """Interval at level 1 - 0.05 / m (Bonferroni): the intervals of all variants hold together."""
    pooled_low: float | None = None
    pooled_high: float | None = None
    """Joint interval with the seed variance pooled over the rows, or the own one if that is larger.
    It decides if there are too few seeds for a p-value."""
    p: float | None = None
    """Two-sided p of the mean difference: the larger of a sign-flip test over seeds and, if
    ``with_images``, the t test of the joint interval. With folds, that t test alone, because the
    seeds are not independent."""
    p_holm: float | None = None
    p_equivalent: float | None = None
    """p of two one-sided tests that the difference lies within the declared margin, by the error of
    the interval that decides."""
    p_equivalent_holm: float | None = None
    seeds_missing: int | None = None
    """Number of pairs that the test still needs, if there are too few and more would help."""
    below: float | None = None
    below_low: float | None = None
    below_high: float | None = None
    """Probability that a training of the variant scores below that of the baseline with the same
    seed."""
    pairing: float | None = None
    """Spread of the paired differences over that of unpaired ones; below 1, pairing helps."""
    detectable: float | None = None
    """Difference that this many seeds find with probability 0.8 at level 0.05 / m: by both tests
    of ``p``, or by the pooled interval if there are too few seeds for a p."""
    effect: Effect | None = None
    source_score: float | None = None
    source_drop: float | None = None
    """The source's accuracy of the variant minus that of the baseline; a loss is negative."""
    verdict: Agreement | None = None


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
    pooled = _pooled_variance(doc)
    rows = [_compare_row(_describe_row(row, doc), row, pooled, doc) for row in variants]
    adjusted = holm([row.p for row in rows], num_tests(doc))
    equivalent = holm([row.p_equivalent for row in rows], num_tests(doc))
    rows = [
        _judge(replace(found, p_holm=p, p_equivalent_holm=same), row, doc)
        for found, row, p, same in zip(rows, variants, adjusted, equivalent, strict=True)
    ]
    return (_describe_row(baseline, doc), *rows)


def rebase(doc: StudyResult, baseline: str) -> StudyResult:
    """Return the same study with another row as the baseline.

    Single test images are compared with the study's own baseline only, so the differences from
    another one include the chance of the seeds alone.
    """
    if baseline == doc.rows[0].variant:
        return doc
    rows = sorted(doc.rows, key=lambda row: row.variant != baseline)
    return doc.replace(rows=tuple(row.replace(contrast=None) for row in rows), reference=None)


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


def paired_differences(
    row: VariantResult, baseline: VariantResult, doc: StudyResult
) -> list[float]:
    """Return score here minus score of the baseline, for each seed that finished in both."""
    mine, other = scores(row, doc.headline), scores(baseline, doc.headline)
    return [rounded(mine[seed] - other[seed]) for seed in mine if seed in other]


def _pooled_variance(doc: StudyResult) -> SeedVariance | None:
    """Return the seed variance of all rows; None if a table does not show every variant.

    A table of some rows could pool another variance than the whole, and so decide more. With folds,
    a p-value decides with any number of seeds, so none is pooled.
    """
    baseline, *variants = doc.rows
    if len(variants) < doc.num_comparisons or doc.folds:
        return None
    valid = [row for row in variants if _withheld(row, doc) != "diverged"]
    return pool_seed_variance([paired_differences(row, baseline, doc) for row in valid])


def _withheld(row: VariantResult, doc: StudyResult) -> Withheld | None:
    return withheld([t.state for t in row.trials], [t.state for t in doc.rows[0].trials])


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
        seconds_mean=float(np.mean(seconds)) if seconds else None,
        seconds_total=float(np.sum(seconds)) if seconds else None,
        source_score=source.accuracy if source else None,
    )


def _compare_row(
    described: RowStatistics, row: VariantResult, pooled: SeedVariance | None, doc: StudyResult
) -> RowStatistics:
    """Return the statistics of a row with its differences from the baseline."""
    baseline = doc.rows[0]
    differences = paired_differences(row, baseline, doc)
    pairs, needed = len(differences), MIN_PAIRS if doc.folds else seeds_needed(num_tests(doc))
    found = replace(
        described,
        num_pairs=pairs,
        difference=rounded(np.mean(differences)) if differences else None,
        seeds_missing=None if pairs >= needed or not _is_valid(row, doc) else needed - pairs,
        source_drop=source_drop(doc, row.variant),
    )
    if pairs < MIN_PAIRS:
        return found
    if doc.folds and len({*differences}) == 1:
        return found  # equal differences do not tell how much those of other images vary
    mine, other = scores(row, doc.headline), scores(baseline, doc.headline)
    ours, theirs = zip(*((mine[seed], other[seed]) for seed in mine if seed in other), strict=True)
    found = replace(found, pairing=pairing_ratio(ours, theirs))
    if not doc.folds:  # the interval needs independent seeds
        below, (low, high) = probability_below(ours, theirs)
        found = replace(found, below=below, below_low=low, below_high=high)
    return _with_tests(_with_intervals(found, row, differences, pooled, doc), row, pooled, doc)


def _with_intervals(
    found: RowStatistics,
    row: VariantResult,
    differences: Sequence[float],
    pooled: SeedVariance | None,
    doc: StudyResult,
) -> RowStatistics:
    """Return a row with its intervals and what its seeds can detect."""
    m, known = num_tests(doc), row.contrast
    own = _error(row, doc)
    (low, high), (joint_low, joint_high) = (
        known.crossed.interval(ALPHA) if known else own.interval(ALPHA),
        own.interval(ALPHA / m),
    )
    shared = _error(row, doc, pooled).interval(ALPHA / m) if pooled else None
    has_test = doc.folds is not None or len(differences) >= seeds_needed(m)
    used = own if has_test else _error(row, doc, pooled)
    return replace(
        found,
        ci_low=rounded(low),
        ci_high=rounded(high),
        with_images=known is not None,
        joint_low=rounded(joint_low),
        joint_high=rounded(joint_high),
        pooled_low=rounded(shared[0]) if shared else None,
        pooled_high=rounded(shared[1]) if shared else None,
        detectable=_detectable(used, len(differences), doc) if has_test or pooled else None,
    )


def _with_tests(
    found: RowStatistics, row: VariantResult, pooled: SeedVariance | None, doc: StudyResult
) -> RowStatistics:
    """Return a row with its p-values, if it is valid and has the seeds for them."""
    if not _is_valid(row, doc):
        return found
    differences = paired_differences(row, doc.rows[0], doc)
    error, p = _error(row, doc, pooled), None
    if found.seeds_missing is None:
        error, p = _error(row, doc), 0.0 if doc.folds else sign_flip_p(differences)
        if doc.folds or found.with_images:
            p = max(p, min(1.0, 2 * error.tail(abs(error.mean))))
    elif pooled is None:
        return found
    # Two one-sided tests: Schuirmann 1987, https://doi.org/10.1007/BF01068419
    margin = doc.margin.points if doc.margin else None
    return replace(
        found, p=p, p_equivalent=error.tail(margin - abs(error.mean)) if margin else None
    )


def _error(row: VariantResult, doc: StudyResult, pooled: SeedVariance | None = None) -> MeanError:
    """Return the error of a row's mean difference; it includes the test images, if known.

    Here alone it is decided what a mean varies with.
    """
    if row.contrast:
        return MeanError.of_images(row.contrast.crossed, pooled)
    return MeanError.of_seeds(paired_differences(row, doc.rows[0], doc), pooled, doc.folds)


def _detectable(error: MeanError, pairs: int, doc: StudyResult) -> float | None:
    """Return the smallest detectable difference."""
    m = num_tests(doc)
    if doc.folds:
        return detectable_by_t(error.variance**0.5, error.seed_freedom, m)
    of_seeds = error.variance * error.seed_share
    of_images = (error.variance - of_seeds) ** 0.5
    found = detectable((of_seeds * pairs) ** 0.5, pairs, m, images_error=of_images)
    return None if found is None else rounded(found)


def _judge(found: RowStatistics, row: VariantResult, doc: StudyResult) -> RowStatistics:
    """Return a row with its effect and its verdict."""
    without, drop = _withheld(row, doc), found.source_drop
    better = doc.headline.higher_is_better
    verdict = None
    if drop is not None:
        verdict = compare_with_source(found, drop, without, same_setting=doc.same_setting)
    effect = judge_difference(found, without, higher_is_better=better)
    return replace(found, effect=effect, verdict=verdict)


def _is_valid(row: VariantResult, doc: StudyResult) -> bool:
    """Return whether no trial of the row and of the baseline diverged.

    Otherwise the trials that are left are a biased sample, for which no test is valid.
    """
    return _withheld(row, doc) in (None, "incomplete")


def source_drop(doc: StudyResult, variant: str) -> float | None:
    """Return the source's accuracy of a variant minus that of the baseline; None unless known."""
    rows = doc.reference.rows if doc.reference else {}
    if variant not in rows or doc.rows[0].variant not in rows:
        return None
    return rounded(rows[variant].accuracy - rows[doc.rows[0].variant].accuracy)


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
