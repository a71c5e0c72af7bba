"""The figure of a factorial study: main effects and interactions."""

import numpy as np
from matplotlib.figure import Figure

from vitcli.runner.figure_style import add_title
from vitcli.runner.study.effects import cell_scores
from vitcli.runner.study.factorial import effects
from vitcli.runner.study.result import StudyResult
from vitcli.runner.text import interval, signed


def interactions(doc: StudyResult) -> Figure:
    """Draw main effects on the diagonal and interactions beside it; bold intervals exclude 0."""
    found = {frozenset(each.parts): each for each in effects(doc.parts, cell_scores(doc))}
    count = len(doc.parts)
    values = np.full((count, count), np.nan)
    figure = Figure(figsize=(1.6 + 1.15 * count, 1.4 + 0.8 * count), layout="constrained")
    axes = figure.add_subplot()
    for i, one in enumerate(doc.parts):
        for j, other in enumerate(doc.parts[: i + 1]):
            if effect := found.get(frozenset((one, other))):
                values[i, j] = effect.value
                is_clear = effect.low > 0 or effect.high < 0
                text = f"{signed(effect.value, 1)}\n{interval(effect.low, effect.high, 1)}"
                weight = "bold" if is_clear else "normal"
                axes.text(j, i, text, ha="center", va="center", fontsize=7, fontweight=weight)
    largest = float(np.nanmax(np.abs(values))) if found else 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest, alpha=0.6)
    axes.set_xticks(range(count), doc.parts, rotation=30, ha="right")
    axes.set_yticks(range(count), doc.parts)
    axes.set_xlabel("part")
    axes.set_ylabel("other part")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=doc.headline.difference_unit, shrink=0.8)
    add_title(figure, f"{doc.name}: effects (diagonal) and interactions")
    return figure
