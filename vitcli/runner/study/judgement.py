"""What a difference means. No other module says better, worse, equivalent or replicates.

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

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol, get_args

from vitcli.runner.study.looks import AnyLook, Look, step_down

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
Agreement = Literal[
    "replicates",
    "not replicated",
    "smaller",
    "larger",
    "same",
    "opposite",
    "too wide to say",
    "undecided",
    Withheld,
]
Place = Literal["below", "above", "around"]
"""Where a difference lies, from a value; ``around`` if that is open."""
Interval = tuple[float, float]


class Verdict(NamedTuple):
    """What the looks at a row have found."""

    pairs: int | None = None
    """Number of pairs of the present look if it finds it, else of the first look that did; None if
    none did."""
    is_higher: bool | None = None
    """Whether the score is above that of the baseline."""
    contradicts: bool = False
    """Whether another look finds the opposite, or two intervals share no value."""


def find_differences(rows: Sequence[Sequence[Look]], num_tests: int) -> list[Verdict]:
    """Return what the looks at each row say of its difference from 0."""

    def finds(look: Look, alpha: float) -> bool:
        return look.is_clear(alpha)

    decisions = step_down(rows, num_tests, finds)
    return [
        settle(looks, first, finds, [each for look in looks if (each := look.deciding_interval)])
        for looks, first in zip(rows, decisions, strict=True)
    ]


def settle(
    looks: Sequence[AnyLook],
    first: tuple[AnyLook, float] | None,
    finds: Callable[[AnyLook, float], bool],
    intervals: Sequence[Interval] = (),
) -> Verdict:
    """Return the verdict of all looks at a row.

    Args:
        first: The first look that finds a difference, and its alpha; None if none does.
    """
    if first is None:
        return Verdict()
    decisive, alpha = first
    contradicts = any(
        finds(look, alpha) for look in looks if look.is_higher != decisive.is_higher
    ) or (bool(intervals) and max(low for low, _ in intervals) > min(high for _, high in intervals))
    last = looks[-1] if finds(looks[-1], alpha) and not contradicts else decisive
    return Verdict(last.pairs, decisive.is_higher, contradicts)


def find_equivalent(
    rows: Sequence[Sequence[Look]], num_tests: int, margin: float
) -> list[int | None]:
    found = step_down(rows, num_tests, lambda look, alpha: look.is_equivalent(margin, alpha))
    return [first[0].pairs if first else None for first in found]


class Evidence(Protocol):
    """The numbers of a row that decide. Each is None if the finished trials do not give it."""

    @property
    def difference(self) -> float | None: ...
    @property
    def joint_low(self) -> float | None: ...
    @property
    def joint_high(self) -> float | None: ...
    @property
    def pooled_low(self) -> float | None: ...
    @property
    def pooled_high(self) -> float | None: ...
    @property
    def p_holm(self) -> float | None: ...
    @property
    def decided_at(self) -> int | None: ...
    @property
    def is_higher(self) -> bool | None: ...
    @property
    def equivalent_at(self) -> int | None: ...


class Judged(Evidence, Protocol):
    """A row with its effect."""

    @property
    def effect(self) -> Effect | None: ...


def withheld(states: Collection[str], baseline: Collection[str]) -> Withheld | None:
    """Return why a row has no effect, from the states of its trials and of the baseline's."""
    if "diverged" in states:
        return "diverged"
    if "diverged" in baseline:
        return "baseline diverged"
    return None if {*states, *baseline} <= {"finished"} else "incomplete"


def judge_difference(
    row: Evidence, without: Withheld | None, *, higher_is_better: bool
) -> Effect | None:
    """Return what a difference means; None if there are too few pairs for an interval.

    better, worse: the difference exists. equivalent: it is smaller than the declared margin. Both
    can hold. undecided: neither does, which is not "no effect".
    """
    if without or row.difference is None or row.joint_low is None:
        return without
    is_equivalent = row.equivalent_at is not None
    if row.decided_at is None:
        return "equivalent" if is_equivalent else "undecided"
    if row.is_higher == higher_is_better:
        return "better, within the margin" if is_equivalent else "better"
    return "worse, within the margin" if is_equivalent else "worse"


def deciding_interval(row: Evidence) -> Interval | None:
    """Return the joint interval that may decide; None if the seeds allow none.

    It needs no pooled variance if the study has the seeds for a p-value.
    """
    is_alone = row.pooled_low is None and row.decided_at is not None
    low, high = row.pooled_low, row.pooled_high
    if row.p_holm is not None or is_alone:
        low, high = row.joint_low, row.joint_high
    return None if low is None or high is None else (low, high)


def direction(effect: Effect | None) -> Literal["better", "worse"] | None:
    """Return in which direction a difference exists; None if that is open."""
    if effect is not None and effect.startswith("better"):
        return "better"
    return "worse" if effect is not None and effect.startswith("worse") else None


def is_withheld(effect: Effect | None) -> bool:
    return effect in get_args(Withheld)


def place(row: Judged, value: float) -> Place:
    """Return where the difference of a row lies, from a value other than 0."""
    found = deciding_interval(row)
    if is_withheld(row.effect) or found is None:
        return "around"
    return "above" if found[0] > value else "below" if found[1] < value else "around"


def compare_with_source(
    row: Evidence, drop: float, without: Withheld | None, *, same_setting: bool
) -> Agreement | None:
    """Return whether our difference agrees with the source's drop.

    replicates: our difference exists, and its interval contains the drop and is not wider than it.
    too wide to say: the interval contains the drop, but not so. not replicated: our difference is
    undecided, and its interval excludes the drop. opposite: it has the other sign. smaller, larger:
    it has the drop's sign, and its interval excludes the drop.

    In another setting sizes mean nothing, so the answer is same, opposite or undecided. A drop of
    exactly 0 has no direction: in the same setting any difference is larger, in another setting
    the direction is undecided.
    """
    if without or row.difference is None or row.joint_low is None:
        return without
    found, exists = deciding_interval(row), row.decided_at is not None
    if found is None:
        return "undecided"
    has_drop = found[0] <= drop <= found[1]
    is_higher = row.difference > 0 if row.is_higher is None else row.is_higher
    has_same_sign = is_higher == (drop > 0)
    if not same_setting:
        return "undecided" if not exists or drop == 0 else "same" if has_same_sign else "opposite"
    if has_drop:
        is_narrow = found[1] - found[0] <= abs(drop)
        return "replicates" if is_narrow and exists else "too wide to say"
    if not exists:
        return "not replicated"
    if drop == 0:
        return "larger"
    if not has_same_sign:
        return "opposite"
    return "smaller" if abs(row.difference) < abs(drop) else "larger"
