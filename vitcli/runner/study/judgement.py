"""What a difference means. No other module says better, worse, equivalent or agrees.

1. A row with a diverged trial, or with a diverged baseline, has no effect: the trials that are left
   are a biased sample. A row with a trial that has no result yet is incomplete.
2. A difference exists if any look so far found it. A look finds it if its p-value, the larger of
   two tests, is at most the level of the look, by Holm's method over the rows of the study.
3. A look with too few seeds for a p-value finds a difference by the joint interval at its level, if
   the seed variance is pooled over the rows.
4. Otherwise the difference is undecided. If two looks contradict each other, it has no effect.

docs/explanation/statistics.md explains the rule. experiments/statistics/looks.py measures how often
it is wrong, however often one looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from vitcli.runner.study.looks import Look, step_down
from vitcli.runner.study.result import VariantResult

Withheld = Literal["diverged", "baseline diverged", "incomplete", "looks contradict each other"]
Effect = Literal[
    "better",
    "worse",
    "better, within the margin",
    "worse, within the margin",
    "equivalent",
    "undecided",
    Withheld,
]
Agreement = Literal["agrees", "differs", "open"]
Interval = tuple[float, float]


class Verdict(NamedTuple):
    pairs: int | None = None
    """Number of pairs of the present look if it finds it, else of the first look that did."""
    is_higher: bool | None = None
    contradicts: bool = False
    """Whether another look finds the opposite, or two intervals share no value."""


def find_differences(rows: Sequence[Sequence[Look]], num_tests: int) -> list[Verdict]:
    decisions = step_down(rows, num_tests, Look.is_clear)
    return [_settle(looks, first) for looks, first in zip(rows, decisions, strict=True)]


def _settle(looks: Sequence[Look], first: tuple[Look, float] | None) -> Verdict:
    if first is None:
        return Verdict()
    decisive, alpha = first
    is_opposed = any(look.is_clear(alpha) for look in looks if look.is_higher != decisive.is_higher)
    intervals = [interval for look in looks if (interval := look.deciding_interval)]
    lows, highs = zip(*intervals, strict=True) if intervals else ((), ())
    contradicts = is_opposed or (bool(lows) and max(lows) > min(highs))
    last = looks[-1] if looks[-1].is_clear(alpha) and not contradicts else decisive
    return Verdict(last.pairs, decisive.is_higher, contradicts)


def find_equivalent(
    rows: Sequence[Sequence[Look]], num_tests: int, margin: float
) -> list[int | None]:
    found = step_down(rows, num_tests, lambda look, alpha: look.is_equivalent(margin, alpha))
    return [first[0].pairs if first else None for first in found]


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Statistics of one variant: scores in the headline's unit (percent), times in seconds.

    A number that the finished trials do not give is None.
    """

    variant: str
    n: int
    """Number of finished trials. The mean is taken over them."""
    num_diverged: int = 0
    num_unfinished: int = 0
    """Failed, interrupted, running, stale or missing."""
    score_mean: float | None = None
    score_sd: float | None = None
    """Sample standard deviation over the seeds (n - 1 in the denominator), on these test images."""
    seconds_mean: float | None = None
    """Training time of a finished trial, with its pre-training."""
    seconds_total: float | None = None
    num_pairs: int = 0
    """Number of seeds that finished both here and in the baseline."""
    difference: float | None = None
    """Mean over the pairs: score here minus score of the baseline."""
    ci_low: float | None = None
    ci_high: float | None = None
    """Interval of the mean difference that holds at 95 % however often one looks: the intersection
    of those of all looks so far. For new seeds and, if ``with_images``, new test images; with
    folds, for new images. It is not adjusted for the number of variants. None for fewer than three
    pairs, or if two looks contradict each other."""
    with_images: bool = False
    """Whether intervals and tests include the chance of the test images."""
    joint_low: float | None = None
    joint_high: float | None = None
    """Interval at level 1 - 0.05 / m (Bonferroni): the intervals of all variants hold together."""
    pooled_low: float | None = None
    pooled_high: float | None = None
    """Joint interval with the seed variance pooled over the rows, or the own one if that is larger.
    It decides if there are too few seeds for a p-value."""
    p: float | None = None
    """Two-sided p of the mean difference at the present look: the larger of a sign-flip test over
    seeds and the t test of the joint interval. With folds, that t test alone, because the seeds are
    not independent. None if no p could decide."""
    p_holm: float | None = None
    level: float | None = None
    """Largest ``p_holm`` that finds a difference at the present look, at Holm's first step."""
    decided_at: int | None = None
    """Number of pairs of the present look if it finds a difference, else of the first that did."""
    is_higher: bool | None = None
    """Whether the score is higher than the baseline's, by that look."""
    p_equivalent: float | None = None
    """p of two one-sided tests that the difference lies within the declared margin."""
    p_equivalent_holm: float | None = None
    equivalent_at: int | None = None
    """Number of pairs of the first look that found the difference within the margin."""
    seeds_missing: int | None = None
    """Number of pairs after which the planned seeds give a p-value."""
    plan_needed: int | None = None
    """Number of planned seeds that a p-value needs, if fewer were planned."""
    below: float | None = None
    below_low: float | None = None
    below_high: float | None = None
    """Probability that a training scores below that of the baseline with the same seed."""
    pairing: float | None = None
    """Spread of the paired differences over that of unpaired ones; below 1, pairing helps."""
    detectable: float | None = None
    """Difference that this many seeds find with probability 0.8 at the level of the planned look:
    by the t test of ``p``, or by the pooled interval if there are too few seeds for a p."""
    effect: Effect | None = None
    source_score: float | None = None
    source_drop: float | None = None
    """The source's accuracy of the variant minus that of the baseline; a loss is negative."""
    verdict: Agreement | None = None
    """None if the source does not state the drop."""

    @property
    def lies_outside(self) -> bool:
        """Whether earlier looks exclude the present difference."""
        if self.difference is None or self.ci_low is None or self.ci_high is None:
            return False
        return not self.ci_low <= self.difference <= self.ci_high

    @property
    def lacks_test(self) -> bool:
        return bool(self.seeds_missing or self.plan_needed)


def withheld(row: VariantResult, baseline: VariantResult) -> Withheld | None:
    ours, theirs = ({trial.state for trial in each.trials} for each in (row, baseline))
    if "diverged" in ours | theirs:
        return "diverged" if "diverged" in ours else "baseline diverged"
    return None if ours | theirs <= {"finished"} else "incomplete"


def judge_difference(
    row: RowStatistics, without: Withheld | None, *, higher_is_better: bool
) -> Effect | None:
    """Return what a difference means; None if there are too few pairs for an interval.

    It can exist and be smaller than the declared margin. Undecided is not "no effect".
    """
    if without or row.difference is None or row.joint_low is None:
        return without
    is_equivalent = row.equivalent_at is not None
    if row.decided_at is None:
        return "equivalent" if is_equivalent else "undecided"
    if row.is_higher == higher_is_better:
        return "better, within the margin" if is_equivalent else "better"
    return "worse, within the margin" if is_equivalent else "worse"


def deciding_interval(row: RowStatistics) -> Interval | None:
    """Return the joint interval that decides, pooled without a p-value; None if none does."""
    is_alone = row.pooled_low is None and row.decided_at is not None
    low, high = row.pooled_low, row.pooled_high
    if row.p_holm is not None or is_alone:
        low, high = row.joint_low, row.joint_high
    return None if low is None or high is None else (low, high)


def direction(effect: Effect | None) -> Literal["better", "worse"] | None:
    if effect is not None and effect.startswith("better"):
        return "better"
    return "worse" if effect is not None and effect.startswith("worse") else None


def is_withheld(effect: Effect | None) -> bool:
    return effect in get_args(Withheld)


def compare_with_source(row: RowStatistics, drop: float, *, same_setting: bool) -> Agreement:
    """Return whether our difference agrees with the source's drop.

    In the same setting, it agrees if it exists and its interval contains the drop and is not wider
    than the drop; it differs if the interval excludes the drop. In another setting, sizes mean
    nothing: a difference that exists agrees or differs by its direction. Otherwise, the answer is
    open.
    """
    interval = deciding_interval(row)
    if row.effect is None or is_withheld(row.effect) or interval is None:
        return "open"
    exists = row.decided_at is not None
    if not same_setting:
        if not exists or drop == 0:
            return "open"
        return "agrees" if row.is_higher == (drop > 0) else "differs"
    low, high = interval
    if not low <= drop <= high:
        return "differs"
    return "agrees" if exists and high - low <= abs(drop) else "open"
