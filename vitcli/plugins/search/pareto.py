"""The figure of a search: score against size."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from vitcli.plugins.search.document import SearchResult, validation_score
from vitcli.runner.figure_style import (
    BLUE,
    MUTED,
    VERMILION,
    add_grid,
    add_legend_beside,
    add_title,
)
from vitcli.runner.study.figures import label, write_instead
from vitcli.runner.study.result import VariantResult


def pareto(doc: SearchResult) -> Figure:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    finished = [row for row in doc.rows if validation_score(row) is not None]
    if not finished:
        return write_instead(figure, axes, "no finished trial yet")

    def draw(rows: Sequence[VariantResult], name: str, **style: Any) -> None:
        scores = [doc.headline.scale * (validation_score(row) or 0.0) for row in rows]
        axes.plot([row.parameters or 1 for row in rows], scores, label=name, **style)

    draw(finished, "trial", linestyle="", marker="o", markersize=4, color=MUTED)
    draw(doc.front[::-1], "Pareto front", marker="o", color=BLUE, drawstyle="steps-post")
    draw(finished[:1], "best", linestyle="", marker="D", markersize=7, color=VERMILION)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(EngFormatter())
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5), numticks=8))
    add_grid(axes)
    axes.set(xlabel="parameters (log scale)", ylabel=f"validation {doc.headline.title}")
    add_legend_beside(axes)
    add_title(figure, f"{label(doc.name)}: {doc.headline.label} against size, one seed each")
    return figure
