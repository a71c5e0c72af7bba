"""The figures of a search: score against each field, score against cost, and the course.

The same document always gives the same bytes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from vitcli.runner.figure_style import (
    BLUE,
    FAINT,
    MUTED,
    SMALL_SIZE,
    VERMILION,
    add_legend_beside,
    add_source,
    add_title,
)
from vitcli.runner.search.result import SearchResult, cost_label, cost_of
from vitcli.runner.search.space import as_label
from vitcli.runner.search.trial import SearchTrial
from vitcli.runner.text import capitalize, natural_key, one_line, quantity

SIZE = (6.4, 3.6)
MAX_COLUMNS = 3
"""Largest number of panels in a row."""
MAX_TICKS = 5
"""Largest number of distinct numbers that have a tick each, at even distances."""
MAX_LETTERS = 44
"""Number of letters in the labels of a row of panels above which the labels are turned."""
MIN_LOG_RATIO = 10
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "color": MUTED}
BEST: dict[str, Any] = {"linestyle": "", "marker": "D", "markersize": 7, "color": VERMILION}


def figures_of(doc: SearchResult) -> dict[str, Callable[[], Figure]]:
    return {name: partial(draw, doc) for name, (draw, shows) in FIGURES.items() if shows(doc)}


def fields(doc: SearchResult) -> Figure:
    """Draw the score of each trial against each field that varies, one panel a field."""
    varying = varying_fields(doc)
    columns = min(len(varying), MAX_COLUMNS)
    rows = ceil(len(varying) / columns)
    figure = Figure(figsize=(SIZE[0], 0.4 + 2.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for field, axes in zip(varying, grid.flat, strict=False):
        _draw_field(axes, doc, field, columns)
    for axes in grid.flat[len(varying) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(f"validation {doc.headline.title}")
    if doc.winner:
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(),
            loc="outside upper right",
            ncols=2,
            frameon=False,
            fontsize=SMALL_SIZE,
        )
    _finish(figure, doc, f"{capitalize(doc.headline.label)} by field: {one_line(doc.name, 60)}")
    return figure


def varying_fields(doc: SearchResult) -> list[str]:
    """Return the fields of the space in which the finished trials differ."""
    return [
        field
        for field in doc.space
        if len({as_label(trial.point.get(field)) for trial in doc.ranked}) > 1
    ]


def _draw_field(axes: Axes, doc: SearchResult, field: str, columns: int) -> None:
    """Draw one panel. Many numbers have a scale, a few values stand beside each other."""
    values = [trial.point.get(field) for trial in doc.ranked]
    scores = [doc.headline.scale * (trial.score or 0.0) for trial in doc.ranked]
    places = _places(axes, values, columns)
    axes.plot(places, scores, label="trial", **DOTS)
    axes.plot(places[:1], scores[:1], label="best score", **BEST)
    _add_grid(axes)
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.set_xlabel(one_line(doc.short_names[field], 30))


def _places(axes: Axes, values: Sequence[Any], columns: int) -> list[float]:
    """Scale the x axis for the values of a field; return the place of each value on it."""
    texts = [one_line(as_label(value)) for value in values]
    are_numbers = all(type(value) in (int, float) for value in values)
    if are_numbers and len(set(texts)) > MAX_TICKS:
        if min(values) > 0 and max(values) >= MIN_LOG_RATIO * min(values):
            axes.set_xscale("log")
            subs = (1, 3) if max(values) < 100 * min(values) else (1,)
            axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=3))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return list(values)
    labels = sorted(set(texts), key=float if are_numbers else natural_key)
    turned: dict[str, Any] = {}
    if columns * sum(map(len, labels)) > MAX_LETTERS:
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(labels)), labels=labels, **turned)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    return [labels.index(text) for text in texts]


def pareto(doc: SearchResult) -> Figure:
    """Draw each trial as a point, score against cost, and the front as a line."""
    figure, axes = _axes(doc)
    scale, name = doc.headline.scale, doc.cost_name

    def draw(trials: list[SearchTrial], **style: object) -> None:
        costs = [cost_of(trial, name) for trial in trials]
        axes.plot(costs, [scale * (trial.score or 0.0) for trial in trials], **style)  # type: ignore[arg-type]

    draw(doc.ranked, label="trial", **DOTS)
    draw(doc.front, marker="o", color=BLUE, drawstyle="steps-post", label="Pareto front")
    if doc.winner:
        draw([doc.winner], label="best score", **BEST)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    minor = FuncFormatter(lambda value, _: _short(value) if _leads(value) else "")
    axes.xaxis.set_minor_formatter(minor if _is_narrow(doc) else NullFormatter())
    axes.set_xlabel(f"{cost_label(name)} (log scale)")
    add_legend_beside(axes)
    label = capitalize(doc.headline.label)
    _finish(figure, doc, f"{label} against {cost_label(name)}: {one_line(doc.name, 60)}")
    return figure


def course(doc: SearchResult) -> Figure:
    """Draw the score of each trial in the order of the search, and the best so far."""
    figure, axes = _axes(doc)
    done = {i: each for i, each in enumerate(doc.trials, 1) if each.state == "finished"}
    scores = [doc.headline.scale * (each.score or 0.0) for each in done.values()]
    best = [*accumulate(scores, max if doc.headline.higher_is_better else min)]
    axes.plot([*done], scores, label="trial", **DOTS)
    axes.plot([*done], best, color=BLUE, drawstyle="steps-post", label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial, in the order of the search")
    add_legend_beside(axes)
    _finish(figure, doc, f"Course of the search {one_line(doc.name, 60)}")
    return figure


Content = Callable[[SearchResult], bool]
"""Whether a figure of a search would show anything."""
FIGURES: dict[str, tuple[Callable[[SearchResult], Figure], Content]] = {
    "fields": (fields, lambda doc: bool(varying_fields(doc))),
    "pareto": (pareto, lambda doc: doc.costs_differ),
    "course": (course, lambda doc: bool(doc.ranked)),
}


def _axes(doc: SearchResult) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    _add_grid(axes)
    axes.set_ylabel(f"validation {doc.headline.title}")
    return figure, axes


def _add_grid(axes: Axes) -> None:
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _finish(figure: Figure, doc: SearchResult, title: str) -> None:
    add_title(figure, title)
    trials = f"{quantity(len(doc.ranked), 'finished trial')} of {quantity(doc.epochs, 'epoch')}"
    add_source(
        figure,
        f"{trials} on {doc.data}, one seed each; sampler {doc.sampler}. The scores are"
        " of validation images.",
    )


def _is_narrow(doc: SearchResult) -> bool:
    costs = [cost_of(trial, doc.cost_name) for trial in doc.ranked] or [1.0]
    return max(costs) < 10 * max(1.0, min(costs))


def _leads(value: float) -> bool:
    """Return whether a tick between two powers of ten has a label: at 2, 3, 5 and 7."""
    return f"{value:e}"[0] in "2357"


def _short(value: float) -> str:
    """Return a number as ``131 k`` or ``2.5 M``."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
