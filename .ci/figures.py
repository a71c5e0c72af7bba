"""The figures of docs/. They are not compared: their bytes depend on matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from accuracy_points import FILE, accuracy_figure
from matplotlib.figure import Figure
from study_tables import LABELS, RESULTS, document, interval_of, lengths, of_labels

from vitcli.plugins.factorial.figure import interactions
from vitcli.runner.figure_style import (
    FAINT,
    INK,
    SMALL_SIZE,
    add_legend_beside,
    add_source,
    add_title,
    encode,
)
from vitcli.runner.study.figures import VARIANT_COLOURS, figures_of, forest
from vitcli.runner.study.statistics import RowStatistics
from vitcli.runner.study.table import read_document

STEP = 1.02
"""Factor between the places of neighbouring variants, so that their marks do not overlap."""
SOURCE = (
    "Mean difference from the baseline, paired by seed. Bars: the joint interval of a study's rows."
    " Hollow: the finished trainings of a variant of which others diverged."
)
SEARCH = RESULTS.parent / "search" / "search-tiny"


def differences(found: Mapping[int, Sequence[RowStatistics]], size: str, title: str) -> Figure:
    """Return a figure of differences from the baseline: a line for each variant.

    Args:
        found: Size of a study, such as its number of epochs -> its rows, the baseline first.
        size: What the sizes are, for the axis.
        title: Title of the figure.
    """
    drawn = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = drawn.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    names = dict.fromkeys(row.variant for rows in found.values() for row in rows[1:])
    sizes, lost = sorted(found), []
    for i, name in enumerate(names):
        colour = VARIANT_COLOURS[(i + 1) % len(VARIANT_COLOURS)]
        rows = {each: row for each in sizes for row in found[each] if row.variant == name}
        known = {each: row for each, row in rows.items() if row.difference is not None}
        if not known:
            lost.append(name)
            continue
        places = [each * STEP ** (i - (len(names) - 1) / 2) for each in known]
        heights = [row.difference or 0.0 for row in known.values()]
        axes.plot(places, heights, color=colour, linewidth=1.4, label=name)
        for place, height, row in zip(places, heights, known.values(), strict=True):
            face = "white" if row.num_diverged else colour
            axes.plot(place, height, "o", color=colour, markerfacecolor=face, markersize=5)
            if limits := interval_of(row):
                axes.vlines(place, *limits, color=colour, linewidth=1.6)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{each:,}" for each in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_xlabel(f"{size} (logarithmic)")
    axes.set_ylabel("accuracy minus baseline, points", fontsize=SMALL_SIZE + 1)
    add_legend_beside(axes)
    add_title(drawn, title)
    add_source(drawn, SOURCE + (f" All trainings diverged: {', '.join(lost)}." if lost else ""))
    return drawn


def figures() -> dict[Path, Callable[[], Figure]]:
    """Return the file of each figure, and the function that draws it."""
    search = read_document(SEARCH.with_suffix(".json").read_text())
    labels = {int(count.replace(",", "")): rows for count, rows in of_labels().items()}
    found: dict[str, Callable[[], Figure]] = {
        **{
            name: partial(forest, document(name))
            for name in ("ablation-cifar10-tiny", "ablation-cifar10-full")
        },
        "ablation-length": partial(
            differences,
            lengths(),
            "epochs of the whole schedule",
            "What a part contributes, by the length of the training",
        ),
        "ablation-factorial": partial(interactions, document("ablation-factorial")),
        "study-pretraining": partial(
            differences, labels, LABELS, "Pre-training and training from scratch, same compute"
        ),
    }
    drawn = {RESULTS / f"{name}.png": draw for name, draw in found.items()}
    drawn[FILE.with_suffix(".png")] = accuracy_figure
    return drawn | {SEARCH.with_suffix(".png"): figures_of(search)["pareto"]}


def draw_all() -> None:
    """Draw the figures beside their results."""
    for path, draw in figures().items():
        path.write_bytes(encode(draw, "png"))
