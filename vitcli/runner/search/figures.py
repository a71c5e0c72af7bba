"""The figures of a search: score against cost with the Pareto front, and the course of the search.

The same document always gives the same bytes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from vitcli.runner.figure_style import (
    BLUE,
    FAINT,
    MUTED,
    VERMILION,
    add_legend_beside,
    add_source,
    add_title,
    encode,
)
from vitcli.runner.files import commit, make_folder
from vitcli.runner.search.records import SearchTrial
from vitcli.runner.search.result import SearchResult, cost_label, cost_of
from vitcli.runner.study.notes import capitalize
from vitcli.runner.text import one_line, quantity

FORMATS = ("png", "svg")
SIZE = (6.4, 3.6)


def write_figures(doc: SearchResult, folder: Path) -> dict[str, Path]:
    """Write each figure as PNG and SVG; return file name -> path."""
    make_folder(folder)
    written = {}
    for name, draw in FIGURES.items():
        for form in FORMATS:
            path = folder / f"{name}.{form}"
            commit(path, encode(partial(draw, doc), form))
            written[path.name] = path
    return written


def pareto(doc: SearchResult) -> Figure:
    """Draw each trial as a point, score against cost, and the front as a line."""
    figure, axes = _axes(doc)
    scale, name = doc.headline.scale, doc.cost_name

    def draw(trials: list[SearchTrial], **style: object) -> None:
        costs = [cost_of(trial, name) for trial in trials]
        axes.plot(costs, [scale * (trial.score or 0.0) for trial in trials], **style)  # type: ignore[arg-type]

    draw(doc.ranked, linestyle="", marker="o", markersize=4, color=MUTED, label="trial")
    draw(doc.front, marker="o", color=BLUE, drawstyle="steps-post", label="Pareto front")
    if doc.winner:
        style = {"marker": "D", "markersize": 7, "color": VERMILION, "linestyle": ""}
        draw([doc.winner], label="best score", **style)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    minor = FuncFormatter(lambda value, _: _short(value) if _leads(value) else "")
    axes.xaxis.set_minor_formatter(minor if _is_narrow(doc) else NullFormatter())
    axes.set_xlabel(f"{cost_label(name)} (log scale)")
    add_legend_beside(axes)
    _finish(
        figure,
        doc,
        f"{capitalize(doc.headline.label)} against {cost_label(name)}: {one_line(doc.name, 60)}",
    )
    return figure


def course(doc: SearchResult) -> Figure:
    """Draw the score of each trial in the order of the search, and the best so far."""
    figure, axes = _axes(doc)
    scale = doc.headline.scale
    done = [(i, each.score) for i, each in enumerate(doc.trials, 1) if each.state == "finished"]
    best: list[float] = []
    for _, score in done:
        value = score or 0.0
        is_better = not best or doc.headline.is_better(value, best[-1])
        best.append(value if is_better else best[-1])
    numbers = [number for number, _ in done]
    axes.plot(
        numbers,
        [scale * (score or 0.0) for _, score in done],
        linestyle="",
        marker="o",
        markersize=4,
        color=MUTED,
        label="trial",
    )
    axes.plot(
        numbers,
        [scale * value for value in best],
        color=BLUE,
        drawstyle="steps-post",
        label="best so far",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial, in the order of the search")
    add_legend_beside(axes)
    _finish(figure, doc, f"Course of the search {one_line(doc.name, 60)}")
    return figure


FIGURES: dict[str, Callable[[SearchResult], Figure]] = {"pareto": pareto, "course": course}


def _axes(doc: SearchResult) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel(f"validation {doc.headline.title}")
    return figure, axes


def _finish(figure: Figure, doc: SearchResult, title: str) -> None:
    add_title(figure, title)
    add_source(
        figure,
        f"{quantity(len(doc.ranked), 'finished trial')} of {doc.epochs} epochs on {doc.data},"
        f" one seed each; sampler {doc.sampler}. The scores are of validation images.",
    )


def _is_narrow(doc: SearchResult) -> bool:
    """Return whether the costs lie within a decade, where a log axis has few major ticks."""
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
