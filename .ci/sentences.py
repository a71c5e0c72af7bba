"""Sentences of the docs about measured numbers. Each word about a number follows from it.

What a difference means is judged in vitcli/runner/study/judgement.py. "Undecided" is never called
"no difference".
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitcli.runner.study.judgement import deciding_interval, is_withheld
from vitcli.runner.study.significance import ALPHA
from vitcli.runner.text import join_words, quantity

if TYPE_CHECKING:
    from vitcli.runner.study.statistics import RowStatistics

LEVEL = ALPHA


def place(low: float, high: float, value: float) -> str:
    """Return where an interval lies: ``below``, ``above`` or ``around`` a value."""
    return "above" if low > value else "below" if high < value else "around"


def growth_sentences(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return where the fitted exponents of each cost lie, beside the stated exponents.

    Args:
        rows: Rows of ``vitcli bench attention``, with ``time_exponent`` and ``memory_exponent`` as
            exponent and half its 95 % interval, and ``stated_time`` and ``stated_memory``.
    """
    says = {
        "around": "contains the stated exponent",
        "above": "lies above the stated exponent: the cost grows faster than stated",
        "below": "lies below the stated exponent: the cost grows more slowly than stated",
    }
    sentences = []
    for cost in ("time", "memory"):
        found: dict[str, list[str]] = {where: [] for where in says}
        for row in rows:
            if row[f"{cost}_exponent"]:
                exponent, error = row[f"{cost}_exponent"]
                stated = stated_exponent(row[f"stated_{cost}"])
                # Memory is counted, not timed: an exact fit has an interval of width zero.
                where = place(exponent - error - 1e-6, exponent + error + 1e-6, stated)
                found[where].append(_growing(row, exponent, stated))
        sentences += [
            f"{cost.capitalize()}: the 95 % interval {says[where]}, for {join_words(names)}."
            for where, names in found.items()
            if names
        ]
    return sentences


def stated_exponent(text: str) -> float:
    """Return the exponent of a stated growth: ``N`` -> 1, ``N^1.5`` -> 1.5."""
    found = re.fullmatch(r"N(?:\^([\d.]+))?", text)
    if found is None:
        raise ValueError(f"{text!r} is no power of N")
    return float(found[1] or 1)


def _growing(row: dict[str, Any], exponent: float, stated: float) -> str:
    name = row["attention"] + ("" if row["kernels"] == "plain" else f", {row['kernels']}")
    return f"`{name}` ({exponent:.2f}; stated {stated:g})"


FINDINGS: dict[str | None, str] = {
    "worse": "Lower accuracy than {baseline}: {rows}.",
    "worse, within the margin": "Lower accuracy than {baseline}, within the declared margin:"
    " {rows}.",
    "better": "Higher accuracy than {baseline}: {rows}.",
    "better, within the margin": "Higher accuracy than {baseline}, within the declared margin:"
    " {rows}.",
    "equivalent": "Equivalent to {baseline} within the declared margin: {rows}.",
    "undecided": "Undecided: {rows}. The data are compatible with no difference, and with every"
    " other difference inside the interval.",
    None: "Too few seeds for an interval: {rows}.",
    "diverged": "Diverged, so no difference is stated: {rows}.",
    "baseline diverged": "{baseline} diverged with some seed, so no difference is stated: {rows}.",
    "incomplete": "Not all trials have a result, so no difference is stated: {rows}.",
}
"""Effect of a row -> a sentence."""
POOLED = (
    "There are too few seeds for a p-value. So the joint intervals with the pooled seed variance"
    " decide. They are shown in brackets here, and they hold for all rows together."
)
UNTESTED = (
    "Undecided, because there are too few seeds for a p-value, and no seed variance that is pooled"
    " over the rows of the study: {rows}."
)


def study_sentences(rows: Sequence["RowStatistics"], *, same_setting: bool) -> list[str]:
    """Return what the rows of a study show, the baseline first, and how they fit its source.

    Args:
        rows: Statistics of an accuracy.
        same_setting: Whether the source has the same model, data and length of training.
    """
    baseline, *variants = rows
    sentences = []
    for effect, text in FINDINGS.items():
        rows_of = [row for row in variants if row.effect == effect]
        if names := [_with_interval(row) for row in rows_of]:
            if effect == "undecided" and deciding_interval(rows_of[0]) is None:
                text = UNTESTED
            sentences.append(text.format(baseline=f"`{baseline.variant}`", rows=join_words(names)))
    if any(row.seeds_missing and _has_interval(row) and deciding_interval(row) for row in variants):
        sentences.append(POOLED)
    return [*sentences, *_source_sentences(variants, same_setting=same_setting)]


def _has_interval(row: "RowStatistics") -> bool:
    return row.joint_low is not None and not is_withheld(row.effect)


def _with_interval(row: "RowStatistics") -> str:
    """Return a row with what decides: its p and its interval, or its pooled interval."""
    if row.num_diverged:
        return f"`{row.variant}` ({row.num_diverged} of {row.n + row.num_diverged} seeds)"
    if not _has_interval(row):
        return f"`{row.variant}`"
    low, high = deciding_interval(row) or (row.ci_low, row.ci_high)
    more = ""
    if row.p_holm is not None:
        low, high, more = row.ci_low, row.ci_high, f", p = {row.p_holm:.3f}"
    elif row.pooled_low is None:
        more = f"; {quantity(row.seeds_missing or 0, 'more seed')}"
    return f"`{row.variant}` ({row.difference:+.2f} [{low:+.2f}, {high:+.2f}]{more})"


def _source_sentences(variants: Sequence["RowStatistics"], *, same_setting: bool) -> list[str]:
    """Return which rows agree with the source, by their verdicts."""
    verdicts: dict[str, list[str]] = {}
    for row in variants:
        if row.verdict is not None:
            verdicts.setdefault(row.verdict, []).append(f"`{row.variant}`")
    if not verdicts:
        return []
    found = "; ".join(f"{verdict}: {join_words(rows)}" for verdict, rows in verdicts.items())
    what = "Beside the source" if same_setting else "Direction beside the source"
    sizes = "" if same_setting else " Sizes are not compared, because the settings differ."
    return [f"{what}: {found}.{sizes}"]
