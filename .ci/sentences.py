"""Sentences of the docs about measured numbers. Each word about a number follows from it.

What a difference means is judged in vitcli/runner/study/judgement.py. "Undecided" is never called
"no difference".
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitcli.runner.study.judgement import deciding_interval, is_withheld
from vitcli.runner.study.table import missing_seeds
from vitcli.runner.text import join_words

if TYPE_CHECKING:
    from vitcli.runner.study.statistics import RowStatistics

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
    if any(row.lacks_test and _has_interval(row) and deciding_interval(row) for row in variants):
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
        more = f"; {missing_seeds(row)}"
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
