"""The figure of docs/pretraining.md: accuracy, and its gain, against the number of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitcli.runner.figure_style import FAINT, INK, SMALL_SIZE, add_source, add_title
from vitcli.runner.study.figures import DASHES, VARIANT_COLOURS, name_lines
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import RowStatistics, compare, scores

MARKERS = "osD^vP*"
STEP = 1.07
"""Factor between the places of neighbouring variants, so that their marks do not overlap."""
SOURCE = (
    "Above: a dot is a trial, a line joins the means over the seeds. Below: the mean difference,"
    " paired by seed, with its 95 % t interval where at least three seeds have finished."
)


def figure(docs: Mapping[int, StudyResult]) -> Figure:
    """Return the figure: a line for each variant, training from scratch in black.

    Args:
        docs: Number of labels -> the study, the smallest number first. The first variant of each
            is training from scratch.
    """
    drawn = Figure(figsize=(7.2, 6), layout="constrained")
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(1, 1))
    found = {count: compare(doc) for count, doc in docs.items()}
    names = [row.variant for row in next(iter(docs.values())).rows]
    _accuracies(above, docs, found, names)
    _differences(below, found, names)
    for axes in (above, below):
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xscale("log")
        axes.set_xlim(min(docs) / 1.3, max(docs) * 1.3)
        axes.set_xticks([*docs], [f"{count:,}" for count in docs])
        axes.minorticks_off()
    below.set_xlabel("labelled training images of CIFAR-10 (logarithmic)")
    add_title(drawn, "Pre-training and training from scratch with the same compute")
    add_source(drawn, SOURCE)
    return drawn


def _accuracies(
    axes: Axes,
    docs: Mapping[int, StudyResult],
    found: Mapping[int, Sequence[RowStatistics]],
    names: Sequence[str],
) -> None:
    ends = []
    for i, name in enumerate(names):
        means = {c: r.score_mean for c, r in _own(found, name) if r.score_mean is not None}
        if not means:
            continue
        places = {count: count * _shift(i, names) for count in means}
        axes.plot([*places.values()], [*means.values()], **(_style(i) | {"marker": ""}))
        for count, place in places.items():
            row = next(row for row in docs[count].rows if row.variant == name)
            points = [*scores(row, docs[count].headline).values()]
            look: dict[str, Any] = {
                "marker": "o",
                "markersize": 4,
                "markeredgewidth": 0,
                "alpha": 0.6,
            }
            axes.plot([place] * len(points), points, linestyle="", color=_style(i)["color"], **look)
        ends.append((means[max(means)], name, _style(i)["color"], places[max(means)]))
    axes.set_ylabel("test accuracy, %", fontsize=SMALL_SIZE + 1)
    name_lines(axes, ends)


def _differences(
    axes: Axes, found: Mapping[int, Sequence[RowStatistics]], names: Sequence[str]
) -> None:
    axes.axhline(0, color=INK, linewidth=1.2, linestyle=DASHES[1])
    ends = [(0.0, names[0], INK, max(found) * 1.3)]
    for i, name in enumerate(names[1:], start=1):
        known = [
            (count, row.difference, row)
            for count, row in _own(found, name)
            if row.difference is not None
        ]
        if not known:
            continue
        places = [count * _shift(i, names) for count, _, _ in known]
        axes.plot(places, [difference for _, difference, _ in known], **_style(i), markersize=5)
        for place, (_, _, row) in zip(places, known, strict=True):
            if row.ci_low is not None and row.ci_high is not None:
                axes.vlines(place, row.ci_low, row.ci_high, color=_style(i)["color"], linewidth=1.6)
        ends.append((known[-1][1], name, _style(i)["color"], places[-1]))
    axes.set_ylabel(f"accuracy minus {names[0]}, points", fontsize=SMALL_SIZE + 1)
    name_lines(axes, ends)


def _own(
    found: Mapping[int, Sequence[RowStatistics]], name: str
) -> list[tuple[int, RowStatistics]]:
    """Return the statistics of a variant with each number of labels."""
    return [(count, row) for count, rows in found.items() for row in rows if row.variant == name]


def _shift(i: int, names: Sequence[str]) -> float:
    """Return the factor that moves variant ``i`` beside its neighbours."""
    return float(STEP ** (i - (len(names) - 1) / 2))


def _style(i: int) -> dict[str, Any]:
    """Return the look of the line of variant ``i``."""
    return {
        "color": VARIANT_COLOURS[i % len(VARIANT_COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[1] if i == 0 else "-",
        "linewidth": 1.4,
    }
