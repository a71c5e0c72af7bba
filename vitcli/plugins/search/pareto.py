"""The figure of a search: score against size."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from vitcli.plugins.search.document import SearchResult, validation_score
from vitcli.runner import figure_style
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

    draw(finished, "trial", linestyle="", marker="o", markersize=4, color=figure_style.MUTED)
    draw(
        doc.front[::-1], "Pareto front", marker="o", color=figure_style.BLUE, drawstyle="steps-post"
    )
    draw(finished[:1], "best", linestyle="", marker="D", markersize=7, color=figure_style.VERMILION)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(EngFormatter())
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5), numticks=8))
    figure_style.add_grid(axes)
    axes.set(xlabel="parameters (log scale)", ylabel=f"validation {doc.headline.title}")
    figure_style.add_legend_beside(axes)
    figure_style.add_title(
        figure, f"{label(doc.name)}: {doc.headline.label} against size, one seed each"
    )
    return figure
