"""Figures of a study: differences with their intervals, and learning curves.

The figures can be read in print and by colour-blind readers: they use the colours of Okabe and Ito,
and each line has its own dash. The same document always gives the same bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.plugin import load_target
from vitcli.runner.figure_style import (
    BLUE,
    DASHES,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PINK,
    SKY_BLUE,
    VERMILION,
    add_grid,
    add_legend_beside,
    add_source,
    add_title,
)
from vitcli.runner.study.result import FIGURES, StudyResult, VariantResult
from vitcli.runner.study.statistics import RowStatistics, compare, scores
from vitcli.runner.study.table import score_text
from vitcli.runner.text import interval, one_line, signed

VARIANT_COLOURS = (INK, ORANGE, SKY_BLUE, GREEN, BLUE, VERMILION, PINK)
"""The colours of ``PALETTE`` in another order: the baseline is the first row and gets the ink."""
LABEL_LENGTH = 32
LABEL_HEIGHT = 0.19
"""Inches from one name to the next, beside the learning curves."""


def forest(doc: StudyResult) -> Figure:
    found = compare(doc)
    shown = list(zip(doc.rows, found, strict=True))[1:]
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * max(1, len(shown))), layout="constrained")
    axes = figure.add_subplot()
    if not shown:
        return write_instead(figure, axes, "there is only a baseline, so nothing to compare")
    if all(numbers.difference is None for _, numbers in shown):
        return write_instead(figure, axes, "no variant has a finished pair of seeds yet")
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    for place, (row, numbers) in enumerate(shown):
        _forest_row(axes, place, row, numbers, doc)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [label(row.variant) for row, _ in shown])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    add_grid(axes, "x")
    axes.margins(x=0.08)
    against = label(doc.rows[0].variant)
    unit = doc.headline.difference_unit
    axes.set(ylabel="variant", xlabel=f"{doc.headline.label} minus {against}, {unit}")
    baseline, title = found[0], "the baseline has no result yet"
    if baseline.score_mean is not None:
        value = score_text(baseline.score_mean, doc.headline)
        title = f"{label(baseline.variant)} {value}, n = {baseline.n}"
    add_title(figure, f"{label(doc.name)}: {title}")
    handles, names = axes.get_legend_handles_labels()
    legend = dict(zip(names, handles, strict=True))  # each label once
    beside: dict[str, Any] = {"loc": "outside lower left", "ncols": 4}
    figure.legend(legend.values(), legend, frameon=False, fontsize=8, **beside)
    return figure


def _forest_row(
    axes: Axes, place: int, row: VariantResult, numbers: RowStatistics, doc: StudyResult
) -> None:
    ours, theirs = scores(row, doc.headline), scores(doc.rows[0], doc.headline)
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    circles: dict[str, Any] = {"color": INK, "fillstyle": "none", "markersize": 7, "zorder": 5}
    axes.plot(pairs, [place] * len(pairs), "o", **circles, label="one seed")
    if numbers.difference is not None:
        axes.plot(numbers.difference, place, "s", color=BLUE, markersize=5, label="mean", zorder=4)
    if numbers.ci_low is not None and numbers.ci_high is not None:
        ends = (numbers.ci_low, numbers.ci_high)
        axes.plot(ends, (place, place), color=BLUE, linewidth=2, label="95 % interval", zorder=3)
    if numbers.source_drop is not None:
        axes.plot(
            numbers.source_drop,
            place + 0.22,
            "D",
            color=VERMILION,
            markersize=4.5,
            label="the source's drop",
            zorder=4,
        )
    axes.annotate(
        _row_text(numbers, doc.headline.digits),
        (1.01, place),
        xycoords=axes.get_yaxis_transform(),
        va="center",
        fontsize=8,
        color=INK,
    )


def _row_text(numbers: RowStatistics, digits: int) -> str:
    states = {"diverged": numbers.num_diverged, "not finished": numbers.num_unfinished}
    not_counted = [f"{count} {state}" for state, count in states.items() if count]
    if numbers.difference is None:
        return ", ".join(not_counted) or "no pair"
    text = signed(numbers.difference, digits)
    if limits := interval(numbers.ci_low, numbers.ci_high, digits):
        text += f"{' outside' * numbers.lies_outside} {limits}"
    return ", ".join([f"{text}, n = {numbers.num_pairs}", *not_counted])


def curves(doc: StudyResult) -> Figure:
    """Draw the headline number by epoch: mean and range over the finished seeds that have it."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    missing = []
    rows = [row for row in doc.rows if not (doc.parts and "+" in row.variant)]
    for index, row in enumerate(rows):
        epochs, values = curve(row, doc.headline.scale)  # (E,), (seeds, E)
        if not len(epochs):
            missing.append(label(row.variant))
            continue
        colour = VARIANT_COLOURS[index % len(VARIANT_COLOURS)]
        dash = DASHES[(index + index // len(VARIANT_COLOURS)) % len(DASHES)]
        low, mean, high = values.min(0), values.mean(0), values.max(0)
        if len(values) > 1:
            axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
        if len(epochs) == 1:
            epochs = epochs + 0.1 * (index - (len(rows) - 1) / 2)  # beside each other
            axes.vlines(epochs, low, high, color=colour, alpha=0.5, linewidth=4)
        marker = "o" if len(epochs) == 1 else None
        axes.plot(epochs, mean, color=colour, linestyle=dash, linewidth=1.6, marker=marker)
        axes.lines[-1].set_label(f" {label(row.variant)} ({len(values)})")
    if not axes.lines:
        return write_instead(figure, axes, "no finished trial yet")
    figure.set_figheight(max(4.0, 1.2 + LABEL_HEIGHT * len(axes.lines)))
    add_legend_beside(axes)
    add_grid(axes, "y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    split = "validation split" if doc.base_config.get("data.val_split") else "test images"
    unit = f", {doc.headline.unit}" if doc.headline.unit else ""
    axes.set(xlabel="epoch", ylabel=f"{doc.headline.label} on the {split}{unit}")
    add_title(figure, f"{label(doc.name)}: {shown_seeds(doc)}")
    if missing:
        add_source(figure, f"Without a curve: {', '.join(missing)}")
    return figure


def shown_seeds(doc: StudyResult) -> str:
    """Return what the learning curves show of the seeds: a range needs two seeds."""
    counts = [sum(trial.state == "finished" for trial in row.trials) for row in doc.rows]
    if max(counts, default=0) < 2:
        return "one finished seed"
    return "mean, lowest and highest finished seed (number of seeds)"


def curve(row: VariantResult, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs (E,) and the scaled headline number (seeds, E) of the finished trials."""
    trials = [dict(trial.curve) for trial in row.trials if trial.state == "finished"]
    epochs = sorted(set.intersection(*map(set, trials))) if trials else []
    values = [[scale * trial[epoch] for epoch in epochs] for trial in trials]
    return np.array(epochs), np.array(values)


def write_instead(figure: Figure, axes: Axes, text: str) -> Figure:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=MUTED)
    return figure


def label(text: str) -> str:
    return one_line(text, LABEL_LENGTH)


def figures_of(doc: StudyResult) -> dict[str, Callable[[], Figure]]:
    return {name: partial(load_target(FIGURES[name].draw), doc) for name in doc.figures}
