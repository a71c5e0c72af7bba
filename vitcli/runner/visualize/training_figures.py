"""Figures of a training and of its mistakes. Axes: K classes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.core.metric import Metric
from vitcli.core.spec.task import TaskRow
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.figure_style import (
    BLUE,
    DASHES,
    INK,
    SMALL_SIZE,
    VERMILION,
    add_colour_bar,
    add_grid,
    add_legend_beside,
    text_width,
    wrap_text,
)
from vitcli.runner.run.record import curve
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, source_of

MANY = 20
"""Largest number of classes for which a confusion matrix shows names and numbers."""
PAIRS = 12
"""Number of confused pairs beside a matrix of more classes."""
MAX_PANELS = 3
LABEL_WIDTH = 2.2
"""Largest width of a class name in inches; a longer name takes two lines."""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """The curves of one number: split -> (epoch, value)."""

    label: str
    title: str
    scale: float
    splits: dict[str, tuple[tuple[int, float], ...]]

    @property
    def drawn(self) -> set[str]:
        return {split for split, points in self.splits.items() if points}


def curves_figure(tested: TrainedRun) -> RunFigure:
    records = tested.record.metrics
    if why := tested.record.why_no_curve:
        raise NoFigureError(why)
    row = tested.spec.task.row
    recorded = dict.fromkeys([*row.reports, *row.recorded])
    panels = [_read_panel(records, name, row) for name in recorded]
    if not any(panel.drawn for panel in panels):
        raise NoFigureError(f"its metrics.jsonl has none of {', '.join(recorded)}")
    *first, last = [panel.label for panel in panels]
    shown = f"{', '.join(first)} and {last}" if first else last
    training = "Training values are means over the epoch"
    if tested.spec.task.row.classifies:
        training += ", with augmentation and label smoothing, so they may be worse than test values"
    is_limited = tested.run.spec().train.limit_batches is not None
    has_test = any("test" in panel.drawn for panel in panels)
    return RunFigure(
        draw_axes=partial(_draw_curves, panels),
        title="Learning curves",
        summary=f"{shown[:1].upper()}{shown[1:]} by epoch.",
        details=f"{training}.",
        source=source_of(tested, len(tested.data.test) if has_test and not is_limited else None),
    )


def _read_panel(records: list[dict[str, Any]], name: str, task: TaskRow) -> _Panel:
    metric = task.headline if name == task.headline.name else Metric(name=name, label=name)
    is_cross_entropy = task.classifies and name == "loss"
    return _Panel(
        label=metric.label.replace("_", " "),
        title="cross-entropy, nats" if is_cross_entropy else metric.title.replace("_", " "),
        scale=metric.scale,
        splits={split: curve(records, f"{split}_{name}") for split in ("train", "val", "test")},
    )


def _draw_curves(panels: list[_Panel]) -> Figure:
    columns = min(len(panels), MAX_PANELS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.6, 2.8 * rows), layout="constrained")
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in cells[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(cells, panels, strict=False):
        styles = ((VERMILION, DASHES[1]), (INK, DASHES[2]), (BLUE, "-"))
        for (split, points), (colour, dash) in zip(panel.splits.items(), styles, strict=True):
            if not points:
                continue
            epochs, values = np.array(points).T
            values = values * panel.scale
            style = {"color": colour, "linestyle": dash, "linewidth": 1.6}
            mark = "o" if len(epochs) < 3 else None
            axes.plot(epochs, values, marker=mark, label=split, **style)
        axes.set(xlabel="epoch", ylabel=panel.title)
        low, high = axes.get_ylim()
        if panel.scale == 100 and axes.dataLim.y1 <= 100:  # no share of images is larger
            axes.set_ylim(top=min(high, 100 + 0.05 * (100 - low)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        add_grid(axes, "y")
        if panel is panels[-1] or not panel.drawn <= panels[-1].drawn:
            add_legend_beside(axes)
    return figure


def confusion_figure(tested: TrainedRun) -> RunFigure:
    table = np.array(tested.scores.confusion)
    names = [one_line(name, 80) for name in tested.class_names]
    scores = tested.scores
    low, high = (100 * bound for bound in scores.accuracy_interval)
    details = "Rows are true classes and columns are predicted classes, in per cent of the row."
    if len(names) > MANY:
        details += " Classes are numbered in the order of the data set. Right: the pairs with the"
        details += " largest share of the true class."
    return RunFigure(
        draw_axes=partial(_draw_confusion if len(names) <= MANY else _draw_many, table, names),
        title="Confusion matrix",
        summary=f"Accuracy {100 * scores.accuracy:.2f} % (95 % interval {low:.2f} to {high:.2f}).",
        details=details,
        source=source_of(tested, scores.num_images),
        numbers={
            "accuracy": scores.accuracy,
            "num_test": scores.num_images,
            "confusion": table.tolist(),
        },
    )


def _shares(table: np.ndarray) -> np.ndarray:
    return np.asarray(100 * table / table.sum(1, keepdims=True).clip(min=1))


def _draw_confusion(table: np.ndarray, names: list[str]) -> Figure:
    count, shares = len(names), _shares(table)
    columns = [wrap_text(name, LABEL_WIDTH, SMALL_SIZE, 2) for name in names]
    sums = table.sum(1)
    rows = [
        wrap_text(f"{name} ({n:,})", LABEL_WIDTH, SMALL_SIZE, 2)
        for name, n in zip(names, sums, strict=True)
    ]
    side = max(0.42 * count, 2.0)
    left, below = (
        max(text_width(line, SMALL_SIZE) for label in labels for line in label.split("\n"))
        for labels in (rows, columns)
    )
    size = (max(side + left + 1.5, 4.5), side + 0.75 * below + 0.8)
    figure = Figure(figsize=size, layout="compressed")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    for i, j in np.argwhere(shares >= 0.5):
        colour = "white" if shares[i, j] > 55 else INK
        axes.text(j, i, f"{shares[i, j]:.0f}", ha="center", va="center", color=colour, size=7.5)
    axes.set_xticks(range(count), columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(count), rows)
    axes.tick_params(length=0, labelsize=SMALL_SIZE)
    axes.set(xlabel="predicted class", ylabel="true class (number of test images)")
    add_colour_bar(figure, image, axes, "% of the true class")
    return figure


def _draw_many(table: np.ndarray, names: list[str]) -> Figure:
    figure = Figure(figsize=(11.5, 5.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    last = len(names) + 0.5
    ends = (0.5, last, last, 0.5)
    image = left.imshow(_shares(table), cmap="Blues", vmin=0, vmax=100, extent=ends)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    left.set(xlabel="number of the predicted class", ylabel="number of the true class")
    add_colour_bar(figure, image, left, "% of the true class")
    _draw_pairs(right, table, names)
    return figure


def _draw_pairs(axes: Axes, table: np.ndarray, names: list[str]) -> None:
    shares = _shares(table)
    np.fill_diagonal(shares, 0)
    order = np.argsort(-shares, axis=None, kind="stable")[:PAIRS]
    pairs = [
        (i, j) for i, j in zip(*np.unravel_index(order, table.shape), strict=True) if shares[i, j]
    ]
    axes.barh(range(len(pairs)), [shares[pair] for pair in pairs], color=BLUE, height=0.6)
    short = [wrap_text(name, 0.8 * LABEL_WIDTH, 7, 1) for name in names]
    labels = [f"{short[i]}\nas {short[j]}: {table[i, j]:,} of {table[i].sum():,}" for i, j in pairs]
    axes.set_yticks(range(len(pairs)), labels, fontsize=7)
    axes.set(xlim=(0, 100), ylim=(PAIRS - 0.5, -0.5), title="Most confused pairs")
    axes.set(xlabel="% of the true class", ylabel="true class, and the class predicted instead")
