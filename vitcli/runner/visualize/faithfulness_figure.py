"""How fast the predicted probability falls and rises as patches are removed and put back.

Below: whether the maps depend on the weights of the model's layers.
"""

from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import DASHES, FAINT, MUTED, PALETTE, add_legend_beside
from vitcli.runner.visualize.faithfulness_numbers import (
    BASELINES,
    Faithfulness,
    measure_faithfulness,
)
from vitcli.runner.visualize.figure import MARKS, RunFigure, source_of
from vitcli.runner.visualize.randomisation import (
    SAME,
    Randomisation,
    describe_randomisation,
    draw_randomisation,
    measure_randomisation,
    randomisation_document,
    summarize_randomisation,
)
from vitcli.runner.visualize.statistics import mean_and_error


def faithfulness_figure(tested: TrainedRun) -> RunFigure:
    """Return the deletion and insertion curves, and the check with randomised weights."""
    found = measure_faithfulness(tested)
    checked = measure_randomisation(tested)
    count = len(found.methods[0].gap)
    best = found.best
    return RunFigure(
        draw_axes=partial(_draw_faithfulness, found, checked),
        title="Faithfulness of the maps",
        summary="Left: the highest patches of each map are replaced by the mean colour; a fast fall"
        " is good. Right: they are put back; a fast rise is good."
        + (" Shaded: 95 % interval over images. " if count > 1 else " ")
        + summarize_randomisation(checked),
        details="The probability is a mean over images, at temperature 1. Grey lines: the"
        " baselines, a random map and a Gaussian in the middle. The training had no pictures with"
        f" grey patches. Best by insertion minus deletion: {best.method}. Above the line at {SAME},"
        f" a map hardly depends on what was re-initialised. {describe_randomisation(checked)}",
        source=source_of(tested, count),
        numbers=faithfulness_document(found)
        | {"randomisation": randomisation_document(checked, mean_gaps(found))},
    )


def mean_gaps(found: Faithfulness) -> dict[str, float]:
    return {each.method: each.gap.mean().item() for each in found.methods}


def faithfulness_document(found: Faithfulness) -> dict[str, object]:
    """Return areas with half their 95 % intervals; ``against_*`` is a paired difference."""
    rows = []
    for each in found.methods:
        row: dict[str, object] = {
            "method": each.method,
            "deletion": each.deletion.mean(0).tolist(),
            "insertion": each.insertion.mean(0).tolist(),
        }
        for name in ("deletion_area", "insertion_area", "gap"):
            row[name], row[f"{name}_ci95"] = mean_and_error(getattr(each, name))
        for other in BASELINES:
            difference = each.gap - found.method(other).gap
            row[f"against_{other}"] = mean_and_error(difference)
        rows.append(row)
    best, *others = found.ranking
    return {
        "n": len(best.gap),
        "best": best.method,
        "best_against_next": mean_and_error(best.gap - others[0].gap),
        "next": others[0].method,
        "shares": list(found.shares),
        "methods": rows,
    }


def _draw_faithfulness(found: Faithfulness, checked: Randomisation) -> Figure:
    figure = Figure(figsize=(8.6, 6.2), layout="constrained")
    axes = figure.subplot_mosaic([["left", "right"], ["below", "below"]])
    left, right = axes["left"], axes["right"]
    right.sharey(left)
    right.tick_params(labelleft=False)
    draw_randomisation(axes["below"], checked)
    _draw_side(left, found, "deletion")
    _draw_side(right, found, "insertion")
    left.set_xlabel("patches removed, %")
    right.set_xlabel("patches put back, %")
    left.set_ylabel("probability of the likeliest class,\ntemperature 1")
    left.set_ylim(0, min(1.0, 1.05 * max(axes.dataLim.y1 for axes in (left, right))))
    add_legend_beside(right)
    return figure


def _draw_side(axes: Axes, found: Faithfulness, side: str) -> None:
    """Draw the mean curve of each method with its interval, deletion or insertion."""
    shares = 100 * np.array(found.shares)
    for i, each in enumerate(found.methods):
        values = getattr(each, side).double()
        is_base = each.method in BASELINES
        colour = MUTED if is_base else PALETTE[i % len(PALETTE)]
        mean = values.mean(0)
        if len(values) > 1:
            error = torch.tensor([mean_and_error(column)[1] for column in values.unbind(1)])
            axes.fill_between(
                shares, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0
            )
        axes.plot(
            shares,
            mean,
            color=colour,
            linestyle=DASHES[1 + BASELINES.index(each.method)] if is_base else "-",
            linewidth=1.5,
            marker=None if is_base else MARKS[i % len(MARKS)],
            markersize=4,
            markevery=(i, max(1, len(shares) // 4)),
            label=each.method,
        )
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
