"""Sentences of the docs about measured numbers. Each word about a number follows from it.

A difference is called a difference only if its interval or its adjusted p-value says so, and
"undecided" is never called "no difference".
"""

import re
from collections.abc import Sequence
from typing import Any

from vitcli.runner.text import join_words

LEVEL = 0.05


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


FINDINGS = {
    "below": "Lower accuracy than {baseline}: {rows}.",
    "above": "Higher accuracy than {baseline}: {rows}.",
    "equivalent": "Equivalent to {baseline} within the declared margin: {rows}.",
    "around": "Undecided: {rows}. The data are compatible with no difference, and with every other"
    " difference inside the interval.",
    "unknown": "Too few seeds for an interval: {rows}.",
    "diverged": "Diverged with some seed, so no difference is stated: {rows}.",
}
"""Where the difference of a row lies -> a sentence."""
DECIDED = ("below", "above", "equivalent", "around")
UNTESTED = (
    "There are too few seeds for a test. So the joint intervals decide. They are shown in brackets"
    " here, and they hold for all rows together."
)


def study_sentences(rows: Sequence[Any], *, same_setting: bool) -> list[str]:
    """Return what the rows of a study show, the baseline first, and how they fit its source.

    Args:
        rows: ``RowStatistics`` of an accuracy, or objects with the same attributes.
        same_setting: Whether the source has the same model, data and length of training.
    """
    baseline, *variants = rows
    found: dict[str, list[str]] = {name: [] for name in FINDINGS}
    for row in variants:
        found[finding(row)].append(_with_interval(row))
    sentences = [
        text.format(baseline=f"`{baseline.variant}`", rows=join_words(found[name]))
        for name, text in FINDINGS.items()
        if found[name]
    ]
    if any(row.p_holm is None for row in variants if finding(row) in DECIDED):
        sentences.append(UNTESTED)
    return [*sentences, *_source_sentences(variants, same_setting=same_setting)]


def finding(row: Any) -> str:
    """Return a key of ``FINDINGS`` for a row.

    An adjusted p-value decides where the study has enough seeds for it, else the joint interval.
    """
    if row.num_diverged:
        return "diverged"
    if row.joint_low is None or row.difference is None:
        return "unknown"
    if row.p_holm is None:
        where = place(row.joint_low, row.joint_high, 0)
    elif row.p_holm <= LEVEL:
        where = "above" if row.difference > 0 else "below"
    else:
        where = "around"
    p_equivalent = row.p_equivalent_holm  # None without a declared margin
    is_equivalent = p_equivalent is not None and p_equivalent <= LEVEL
    return "equivalent" if where == "around" and is_equivalent else where


def _with_interval(row: Any) -> str:
    if row.joint_low is None or row.num_diverged:
        return f"`{row.variant}`"
    low, high, test = row.joint_low, row.joint_high, ""
    if row.p_holm is not None:
        low, high, test = row.ci_low, row.ci_high, f", p = {row.p_holm:.3f}"
    return f"`{row.variant}` ({row.difference:+.2f} [{low:+.2f}, {high:+.2f}]{test})"


def _source_sentences(variants: Sequence[Any], *, same_setting: bool) -> list[str]:
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
