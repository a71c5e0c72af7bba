"""The figure of a factorial study."""

import numpy as np
from matplotlib.figure import Figure

from vitcli.plugins.factorial.effects import effects_of
from vitcli.runner.figure_style import add_title
from vitcli.runner.study.result import StudyResult
from vitcli.runner.text import interval, signed


def interactions(doc: StudyResult) -> Figure:
    effects, parts = effects_of(doc), doc.parts
    digits = 1 if doc.headline.unit == "%" else doc.headline.digits
    figure = Figure(figsize=(1.6 + 1.15 * len(parts), 1.4 + 0.8 * len(parts)), layout="constrained")
    axes = figure.add_subplot()
    values = np.full((len(parts), len(parts)), np.nan)
    for effect in effects:
        i, j = parts.index(effect.parts[-1]), parts.index(effect.parts[0])
        values[i, j] = effect.value
        text = f"{signed(effect.value, digits)}\n{interval(effect.low, effect.high, digits)}"
        weight = "normal" if effect.decided_at is None else "bold"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, fontweight=weight)
    largest = float(np.nanmax(np.abs(values))) if effects else 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest, alpha=0.6)
    axes.set_xticks(range(len(parts)), parts, rotation=30, ha="right")
    axes.set_yticks(range(len(parts)), parts)
    axes.set(xlabel="part", ylabel="other part")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label=doc.headline.difference_unit, shrink=0.8)
    add_title(figure, f"{doc.name}: effects (diagonal) and interactions")
    return figure
