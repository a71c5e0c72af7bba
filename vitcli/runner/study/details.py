"""The second table of a study: how certain the differences of the first are, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitcli.runner.study.looks import seeds_needed
from vitcli.runner.study.result import StudyResult, VariantResult
from vitcli.runner.study.significance import POWER
from vitcli.runner.study.statistics import RowStatistics, num_tests
from vitcli.runner.tables import Column
from vitcli.runner.text import interval, p_text, plain


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of the document and its statistics."""

    row: VariantResult
    found: RowStatistics
    is_baseline: bool
    digits: int
    """Number of decimal places of scores and differences."""


FilledColumn = tuple[Column, Callable[[TableRow], str]]
"""A column and the function that returns its cell in a row."""


def detail_columns(
    doc: StudyResult, numbers: Sequence[RowStatistics]
) -> list[tuple[bool, FilledColumn]]:
    """Return whether each column is shown, and the column."""
    has_images = any(found.with_images for found in numbers)
    has_answers = has_images and doc.headline.unit == "%"
    return [
        (True, (Column("variant", "l"), lambda line: line.row.variant)),
        (True, (Column("joint interval", "r"), _joint)),
        (_pool_decides(numbers), (Column("pooled interval", "r"), _pooled)),
        (doc.folds is None, (Column("P(below baseline)", "r"), _below)),
        (True, (Column("paired spread", "r"), lambda line: plain(line.found.pairing, 2))),
        (True, (Column("detectable", "r"), lambda line: plain(line.found.detectable, line.digits))),
        (
            doc.margin is not None,
            (Column("p equivalent (Holm)", "r"), lambda li: p_text(li.found.p_equivalent_holm)),
        ),
        (has_answers, (Column("lost and won images", "r"), _images)),
    ]


def _joint(line: TableRow) -> str:
    return interval(line.found.joint_low, line.found.joint_high, line.digits)


def _pooled(line: TableRow) -> str:
    return interval(line.found.pooled_low, line.found.pooled_high, line.digits)


def _below(line: TableRow) -> str:
    found = line.found
    if found.below is None:
        return ""
    return f"{found.below:.2f} [{plain(found.below_low, 2)}, {plain(found.below_high, 2)}]"


def _images(line: TableRow) -> str:
    """Return the images that only the baseline, and only the variant, always gets right."""
    known = line.row.contrast
    return "" if known is None else f"{known.only_baseline:,} and {known.only_variant:,}"


def detail_notes(doc: StudyResult, numbers: Sequence[RowStatistics]) -> dict[str, str]:
    """Return subject -> its sentences below the second table."""
    m = num_tests(doc)
    has_images = any(found.with_images for found in numbers)
    every = {
        "joint": (
            f"Joint interval: with alpha 0.05 / {m} instead of 0.05 (Bonferroni), so that the"
            " intervals of all rows hold together, at every look."
            + (
                " Its limit is the mean of the t quantiles of seeds and images, weighted by their"
                " parts of the variance (Cochran and Cox)."
                if has_images
                else ""
            )
        ),
        "pooled": _pooled_note(numbers, m),
        "below": (
            "P(below baseline): share of the seeds with which the variant is lower; a tie counts"
            " one half. Its 95 % interval is that of a binomial share (Clopper and Pearson)."
            if doc.folds is None
            else ""
        ),
        "pairing": (
            "Paired spread: standard deviation of the paired differences over that of unpaired"
            " ones; pairing by seed helps if it is below 1."
        ),
        "detectable": (
            f"Detectable: the difference that this many seeds find with probability {POWER} at"
            " the level of the planned look: by the t test or, with too few seeds for a p, by the"
            " pooled interval."
        ),
        "images": (
            "Lost and won images: test images that every seed of the baseline gets right and"
            " every seed of the variant wrong, and the reverse."
            if has_images and doc.headline.unit == "%"
            else ""
        ),
    }
    return {subject: text for subject, text in every.items() if text}


def _pool_decides(numbers: Sequence[RowStatistics]) -> bool:
    return any(found.lacks_test and found.pooled_low is not None for found in numbers)


def _pooled_note(numbers: Sequence[RowStatistics], m: int) -> str:
    """Return what the pooled interval is, if it decides."""
    if not _pool_decides(numbers):
        return ""
    return (
        "Pooled interval: the joint interval with the seed variance pooled over the rows, or with"
        " the row's own if that is larger. Its degrees of freedom allow for the shared baseline."
        f" It decides, because a p-value needs a plan of {seeds_needed(m)} seeds."
    )
