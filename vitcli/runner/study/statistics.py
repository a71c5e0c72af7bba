"""Statistics of a study: pure functions of its document, in the unit of its headline number.

Only finished trials have numbers. Differences are taken from the first row, the baseline. Each pair
of trials has the same seed, so it shares initialisation, data order and augmentation.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from vitcli.core.metric import Metric
from vitcli.runner.study.judgement import (
    Interval,
    RowStatistics,
    compare_with_source,
    find_differences,
    find_equivalent,
    judge_difference,
    withheld,
)
from vitcli.runner.study.looks import NOTHING, Look, can_test, level, looks_at, seeds_needed
from vitcli.runner.study.result import StudyResult, VariantResult, sort_seeds
from vitcli.runner.study.significance import (
    ALPHA,
    MeanError,
    SeedVariance,
    holm,
    pairing_ratio,
    pool_seed_variance,
    probability_below,
    rounded,
)


def compare(doc: StudyResult) -> tuple[RowStatistics, ...]:
    """Return the statistics of each row, in the order of the rows; the first is the baseline.

    p-values are Holm-adjusted over all variants of the study, shown or not. A row without a p-value
    counts as p = 1, so it never makes another row's p-value smaller.
    """
    if not (_LATEST and _LATEST[0][0] is doc):
        _LATEST[:] = [(doc, _compare(doc))]
    return _LATEST[0][1]


_LATEST: list[tuple[StudyResult, tuple[RowStatistics, ...]]] = []
"""The last document that was compared, and its numbers, for its tables, figures and page."""


def _compare(doc: StudyResult) -> tuple[RowStatistics, ...]:
    if not doc.rows:
        return ()
    baseline, *variants = doc.rows
    m, margin, looks = num_tests(doc), doc.margin, looks_of(doc)
    rows = [_compare_row(row, seen, doc) for row, seen in zip(variants, looks, strict=True)]
    valid = [seen if _is_valid(row, doc) else [] for seen, row in zip(looks, variants, strict=True)]
    verdicts = find_differences(valid, m)
    equivalent_at = find_equivalent(valid, m, margin) if margin else [None] * len(rows)
    p_equivalent = [seen[-1].p_equivalent(margin) if margin and seen else None for seen in valid]
    adjusted, same = holm([row.p for row in rows], m), holm(p_equivalent, m)
    judged = [_describe_row(baseline, doc)]
    for i, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        without = withheld(variants[i], baseline)
        if without is None and verdict.contradicts:
            without = "looks contradict each other"
        at_most = row.level
        is_found = looks[i] and verdict.pairs == looks[i][-1].pairs
        if at_most is not None and is_found and at_most < (adjusted[i] or 0.0) <= ALPHA:
            at_most = ALPHA  # at the plan, sign flips may have all of it at a later step of Holm's
        row = replace(
            row,
            level=at_most,
            p_holm=adjusted[i],
            p_equivalent=p_equivalent[i],
            p_equivalent_holm=same[i],
            decided_at=verdict.pairs,
            is_higher=verdict.is_higher,
            equivalent_at=equivalent_at[i],
        )
        better = doc.headline.higher_is_better
        row = replace(row, effect=judge_difference(row, without, higher_is_better=better))
        if row.source_drop is not None:
            agreement = compare_with_source(row, row.source_drop, same_setting=doc.same_setting)
            row = replace(row, verdict=agreement)
        judged.append(row)
    return tuple(judged)


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
    mine, other = scores(row, doc.headline), scores(baseline, doc.headline)
    seeds = sort_seeds(mine.keys() & other.keys(), doc.plan)
    return [rounded(mine[seed] - other[seed]) for seed in seeds]


def looks_of(doc: StudyResult) -> list[list[Look]]:
    """Return the looks at each row but the baseline: with predictions, those of the document."""
    baseline, *variants = doc.rows
    differences = [paired_differences(row, baseline, doc) for row in variants]
    pairs_of_rows = zip(variants, differences, strict=True)
    counted = [values for row, values in pairs_of_rows if withheld(row, baseline) != "diverged"]
    # A table of some rows could pool another variance than the whole, and so decide more. With
    # folds, a p-value decides with any number of seeds, so none is pooled.
    is_pooled = len(variants) >= doc.num_comparisons and not doc.folds
    pools: dict[int, SeedVariance | None] = {}
    looks: list[list[Look]] = []
    for row, values in zip(variants, differences, strict=True):
        looks.append([])
        for pairs in looks_at(len(values), doc.planned_seeds):
            first = values[:pairs]
            if doc.folds and len({*first}) == 1:
                continue  # equal differences do not tell how much those of other images vary
            if is_pooled and pairs not in pools:
                pools[pairs] = pool_seed_variance([each[:pairs] for each in counted])
            own, pooled = _errors(row, first, pools.get(pairs), doc)
            if own is not None:
                look = Look(
                    pairs=pairs,
                    own=own,
                    pooled=pooled,
                    planned=doc.planned_seeds,
                    num_tests=num_tests(doc),
                    differences=() if doc.folds else first,
                )
                looks[-1].append(look)
    return looks


def _errors(
    row: VariantResult, differences: Sequence[float], pool: SeedVariance | None, doc: StudyResult
) -> tuple[MeanError | None, MeanError | None]:
    """Return the own and the pooled error of the mean, with the chance of the images, if known."""
    if row.contrast:
        known = row.contrast.at(len(differences))
        if known is None:
            return None, None
        return MeanError.of_images(known), MeanError.of_images(known, pool) if pool else None
    return (
        MeanError.of_seeds(differences, None, doc.folds),
        MeanError.of_seeds(differences, pool) if pool else None,
    )


def _describe_row(row: VariantResult, doc: StudyResult) -> RowStatistics:
    values = list(scores(row, doc.headline).values())
    diverged = sum(trial.state == "diverged" for trial in row.trials)
    seconds = [
        trial.train_seconds + (trial.number("pretrain_seconds") or 0.0)
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


def _compare_row(row: VariantResult, looks: Sequence[Look], doc: StudyResult) -> RowStatistics:
    baseline = doc.rows[0]
    differences = paired_differences(row, baseline, doc)
    missing, needed = _missing(row, len(differences), doc)
    source, source_drop = doc.reference.rows if doc.reference else {}, None
    if row.variant in source and baseline.variant in source:
        source_drop = rounded(source[row.variant].accuracy - source[baseline.variant].accuracy)
    found = replace(
        _describe_row(row, doc),
        num_pairs=len(differences),
        difference=rounded(np.mean(differences)) if differences else None,
        source_drop=source_drop,
        seeds_missing=missing,
        plan_needed=needed,
    )
    if not looks:
        return found
    mine, other = scores(row, doc.headline), scores(baseline, doc.headline)
    ours, theirs = zip(*((mine[seed], other[seed]) for seed in mine if seed in other), strict=True)
    found = replace(found, pairing=pairing_ratio(ours, theirs))
    if not doc.folds:  # the interval needs independent seeds
        below, (low, high) = probability_below(ours, theirs)
        found = replace(found, below=below, below_low=low, below_high=high)
    return _with_intervals(found, row, looks, doc)


def _missing(row: VariantResult, pairs: int, doc: StudyResult) -> tuple[int | None, int | None]:
    """Return what a row lacks for a p-value: seeds of the plan, or a plan of so many seeds."""
    m, planned, folds = num_tests(doc), doc.planned_seeds, doc.folds is not None
    if not _is_valid(row, doc) or can_test(pairs, planned, m, folds=folds):
        return None, None
    needed = seeds_needed(m, folds=folds)
    if planned < needed:
        return None, needed
    later = itertools.count(max(planned, pairs + 1))
    return next(n for n in later if can_test(n, planned, m, folds=folds)) - pairs, None


def _with_intervals(
    found: RowStatistics, row: VariantResult, looks: Sequence[Look], doc: StudyResult
) -> RowStatistics:
    last, m = looks[-1], num_tests(doc)
    most = 100.0 if doc.headline.unit == "%" else np.inf  # no difference of two shares is larger

    def headline(look: Look) -> Interval | None:
        if look.own.variance <= NOTHING:
            return None  # equal differences do not tell how much others vary
        # With few seeds, Satterthwaite's is too narrow at the levels of unplanned looks.
        known = row.contrast.at(look.pairs) if row.contrast else None
        if known and look.pairs == doc.planned_seeds:
            return known.interval(look.level(ALPHA))
        return look.interval(look.own, ALPHA)

    low, high = interval_of_looks(looks, headline, most)
    joint_low, joint_high = interval_of_looks(
        looks, lambda look: look.interval(look.own, ALPHA / m), most
    )
    pooled_low, pooled_high = interval_of_looks(
        looks, lambda look: look.interval(look.pooled, ALPHA / m), most
    )
    used = last.own if not found.lacks_test else last.pooled
    level_at_plan = level(doc.planned_seeds, doc.planned_seeds, ALPHA / m)
    has_p = last.has_test and _is_valid(row, doc)
    return replace(
        found,
        ci_low=low,
        ci_high=high,
        with_images=row.contrast is not None,
        joint_low=joint_low,
        joint_high=joint_high,
        pooled_low=pooled_low,
        pooled_high=pooled_high,
        p=last.p if has_p else None,
        level=rounded(m * last.p_level(ALPHA / m)) if has_p else None,
        detectable=used.detectable(level_at_plan) if used and used.variance > NOTHING else None,
    )


def interval_of_looks(
    looks: Sequence[Look], interval: Callable[[Look], Interval | None], most: float
) -> tuple[float | None, float | None]:
    """Return what the intervals of all looks and [-most, most] share; None if that is nothing."""
    last = interval(looks[-1]) if looks else None
    if last is None:
        return None, None
    # Equal differences at an earlier look do not tell how much others vary.
    found = [interval(look) for look in looks[:-1] if look.own.variance > NOTHING]
    known = [last, (-most, most), *(each for each in found if each)]
    low, high = max(low for low, _ in known), min(high for _, high in known)
    return (rounded(low), rounded(high)) if low <= high else (None, None)


def _is_valid(row: VariantResult, doc: StudyResult) -> bool:
    return withheld(row, doc.rows[0]) in (None, "incomplete")


def sampling_error(doc: StudyResult) -> float | None:
    """Return 1.96 sqrt(a (1 - a) / num_test) of the baseline's accuracy a, in points."""
    baseline = _describe_row(doc.rows[0], doc).score_mean if doc.rows else None
    if baseline is None or not doc.num_test or not doc.headline.counts_right:
        return None
    share = baseline / 100
    z = special.ndtri(1 - ALPHA / 2)
    return rounded(100 * z * (share * (1 - share) / doc.num_test) ** 0.5)
