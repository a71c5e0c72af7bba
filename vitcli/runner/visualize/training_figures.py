"""Figures of a training and of its mistakes. Axes: K classes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.core.spec.tasks import Metric, TaskRow
from vitcli.runner.figure_style import BLUE, DASHES, FAINT, INK, VERMILION
from vitcli.runner.run.compare import readable_metrics
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, make_caption
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet

MANY = 20
"""Largest number of classes for which a confusion matrix shows its numbers."""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """The curves of one number: split -> (epoch, value)."""

    label: str
    title: str
    scale: float
    splits: dict[str, list[tuple[float, float]]]

    @property
    def drawn(self) -> set[str]:
        """Return the splits that have a curve."""
        return {split for split, points in self.splits.items() if points}


def curves_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the numbers that the task records, by epoch."""
    records = readable_metrics(tested.run)
    if not records:
        raise NoFigureError("the run has no metrics.jsonl")
    panels = [_read_panel(records, name, tested.task) for name in _recorded_numbers(tested.task)]
    shown = " and ".join(panel.label for panel in panels)
    training = "Training values are means over the epoch"
    if tested.task.classifies:
        training += ", with augmentation and label smoothing, so they may be worse than test values"
    return RunFigure(
        draw=partial(_draw_curves, panels),
        title="Learning curves",
        caption=make_caption(tested, f"{shown[:1].upper()}{shown[1:]} by epoch. {training}."),
    )


def _recorded_numbers(task: TaskRow) -> tuple[str, ...]:
    """Return the names of the numbers in metrics.jsonl, those of the training first."""
    return tuple(dict.fromkeys([*task.reports, *task.recorded]))


def _read_panel(records: list[dict[str, Any]], name: str, task: TaskRow) -> _Panel:
    """Return the curves of one number."""
    metric = task.headline if name == task.headline.name else Metric(name=name, label=name)
    is_cross_entropy = task.classifies and name == "loss"
    return _Panel(
        label=metric.label.replace("_", " "),
        title="cross-entropy, nats" if is_cross_entropy else metric.title.replace("_", " "),
        scale=metric.scale,
        splits={
            split: [(r["epoch"], r[key]) for r in records if r.get(key) is not None]
            for split in ("train", "val", "test")
            for key in [f"{split}_{name}"]
        },
    )


def _draw_curves(panels: list[_Panel]) -> Figure:
    figure = Figure(figsize=(3.6 * len(panels), 3.0), layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(row, panels, strict=True):
        for (split, points), colour, dash in zip(
            panel.splits.items(), (VERMILION, INK, BLUE), (DASHES[1], DASHES[2], "-"), strict=True
        ):
            if not points:
                continue
            epochs, values = np.array(points).T
            values = values * panel.scale
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
        axes.set_ylabel(panel.title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        if panel is panels[-1] or not panel.drawn <= panels[-1].drawn:
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
