"""Figures of a training and of its mistakes. Axes: K classes."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.runner.figure_style import BLUE, DASHES, FAINT, INK, VERMILION
from vitcli.runner.run.compare import readable_metrics
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, make_caption
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet

MANY = 20
"""Largest number of classes for which a confusion matrix shows its numbers."""


def curves_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of loss and accuracy by epoch."""
    records = readable_metrics(tested.run)
    if not records:
        raise NoFigureError("the run has no metrics.jsonl")
    lines = {
        measure: {
            split: [(r["epoch"], r[key]) for r in records if r.get(key) is not None]
            for split in ("train", "val", "test")
            for key in [f"{split}_{measure}"]
        }
        for measure in ("loss", "accuracy")
    }
    return RunFigure(
        draw=partial(_draw_curves, lines),
        title="Learning curves",
        caption=make_caption(
            tested,
            "Loss and accuracy by epoch. Training values are means over the epoch, with"
            " augmentation and label smoothing, so they may be worse than test values.",
        ),
    )


def _draw_curves(lines: dict[str, dict[str, list[tuple[float, float]]]]) -> Figure:
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    for axes, (measure, splits) in zip(figure.subplots(1, 2), lines.items(), strict=True):
        for (split, points), colour, dash in zip(
            splits.items(), (VERMILION, INK, BLUE), (DASHES[1], DASHES[2], "-"), strict=True
        ):
            if not points:
                continue
            epochs, values = np.array(points).T
            values = values * (100 if measure == "accuracy" else 1)
            mark = "o" if len(epochs) < 3 else None
            axes.plot(
                epochs,
                values,
                color=colour,
                linestyle=dash,
                linewidth=1.6,
                marker=mark,
                label=split,
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel("accuracy, %" if measure == "accuracy" else "cross-entropy, nats")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
    axes.legend(frameon=False)
    return figure


def confusion_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of how often each class is predicted for each true class."""
    table = np.array(tested.scores.confusion)
    names = [one_line(name, 14) for name in tested.predictor.names]
    scores = tested.scores
    low, high = (100 * bound for bound in scores.accuracy_interval)
    return RunFigure(
        draw=partial(_draw_confusion, table, names),
        title="Confusion matrix",
        caption=make_caption(
            tested,
            f"Rows are true classes and columns are predicted classes, in per cent of the row."
            f" Accuracy {100 * scores.accuracy:.2f} % (95 % interval {low:.2f} to {high:.2f}).",
            scores.num_images,
        ),
        numbers={
            "accuracy": scores.accuracy,
            "num_test": scores.num_images,
            "confusion": table.tolist(),
        },
    )


def _draw_confusion(table: np.ndarray, names: list[str]) -> Figure:
    count = len(names)
    shares = 100 * table / table.sum(1, keepdims=True).clip(min=1)
    side = 2.2 + 0.42 * count if count <= MANY else 8.0
    figure = Figure(figsize=(side, side - 0.6), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if count <= MANY:
        for i, j in np.argwhere(shares >= 0.5):
            colour = "white" if shares[i, j] > 55 else INK
            axes.text(j, i, f"{shares[i, j]:.0f}", ha="center", va="center", color=colour, size=7.5)
        axes.set_xticks(range(count), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(count), names)
    axes.tick_params(length=0)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02).set_label("% of the true class")
    return figure
