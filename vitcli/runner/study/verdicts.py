"""Verdicts on a difference: does it exist, and does it agree with a source?"""

from typing import Literal

from vitcli.runner.study.significance import ALPHA

Effect = Literal[
    "better",
    "worse",
    "better, within the margin",
    "worse, within the margin",
    "equivalent",
    "undecided",
]
Verdict = Literal[
    "replicates",
    "not replicated",
    "smaller",
    "larger",
    "same",
    "opposite",
    "too wide to say",
    "undecided",
    "incomplete",
    "diverged",
    "baseline diverged",
]


def effect(
    difference: float, p: float | None, p_equivalent: float | None, *, higher_is_better: bool
) -> Effect:
    """Return what Holm-adjusted p-values say of a difference.

    better, worse: it exists. equivalent: it is smaller than the margin. Both can hold. undecided:
    neither does, which is not "no effect".
    """
    is_equivalent = p_equivalent is not None and p_equivalent <= ALPHA
    if p is None or p > ALPHA:
        return "equivalent" if is_equivalent else "undecided"
    if (difference > 0) == higher_is_better:
        return "better, within the margin" if is_equivalent else "better"
    return "worse, within the margin" if is_equivalent else "worse"


def judge(low: float, high: float, drop: float, *, same_setting: bool) -> Verdict:
    """Return the verdict on the interval of our difference, given the source's drop.

    replicates: the interval excludes 0, contains the drop, and reaches at most half the drop to
    either side of its middle. too wide to say: it contains the drop, but also 0, or it is wider
    than that. not replicated: it contains 0 and excludes the drop. opposite: it lies on the other
    side of 0. smaller, larger: it lies on the drop's side of 0 and excludes the drop.

    In another setting sizes mean nothing, so the verdict is same, opposite or undecided. A drop of
    exactly 0 has no direction: in the same setting any difference is larger, in another setting
    the direction is undecided.
    """
    has_zero, has_drop = low <= 0 <= high, low <= drop <= high
    same_side = (low > 0) == (drop > 0)
    if not same_setting:
        return "undecided" if has_zero or drop == 0 else "same" if same_side else "opposite"
    if has_drop:
        is_narrow = high - low <= abs(drop)
        return "replicates" if is_narrow and not has_zero else "too wide to say"
    if has_zero:
        return "not replicated"
    if drop == 0:
        return "larger"
    if not same_side:
        return "opposite"
    return "smaller" if abs(low + high) / 2 < abs(drop) else "larger"
