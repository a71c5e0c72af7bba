"""The attention matrices themselves, layers from top to bottom, heads from left to right.

Axes: L layers, h heads, N tokens (prefix first).
"""

from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vitcli.runner.attn_map.captions import caption, head_names, headline
from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.figure_style import CMAP, MUTED

TILES = (1.4, 2.4)
"""Inches of a matrix with few tokens and with many, where there are several."""
ALONE = 4.0
"""Inches of one matrix, or of a few side by side."""
TOKENS_PER_INCH = 100


def matrix_grid(look: Explanation, run: str) -> Figure:
    """(L, h, N, N) as a grid; a row of a matrix is where one token ("from") looks ("to").

    One colour scale for all, by the square root, so that one strong head does not hide the rest.
    """
    layers, heads, count, _ = look.maps.shape
    tile = min(max(TILES[0], count / TOKENS_PER_INCH), TILES[1])
    tile = max(tile, ALONE / max(layers, heads))
    size = (max(5.5, 1.5 + tile * heads), 1.2 + tile * layers)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    scale = PowerNorm(0.5, vmin=0, vmax=look.maps.max())
    for i, row in enumerate(grid):
        row[0].set_ylabel(f"layer {look.layers[i]}\nfrom", fontsize=8)
        for j, axes in enumerate(row):
            shown = axes.imshow(look.maps[i, j], cmap=CMAP, norm=scale)
            part(axes, look.num_prefix_tokens)
    for axes, name in zip(grid[0], head_names(look), strict=True):
        axes.set_title(name, fontsize=8, loc="center")
    for axes in grid[-1]:
        axes.set_xlabel("to", fontsize=8)
    describe(figure, figure.colorbar(shown, ax=grid, fraction=0.05, pad=0.02, aspect=40), look, run)
    return figure


def describe(figure: Figure, bar: Colorbar, look: Explanation, run: str) -> None:
    """What a grid of maps is about, and what its colours are."""
    bar.set_label("share of attention (square-root scale)")
    figure.suptitle(headline(look), fontsize=9)
    figure.supxlabel(caption(look, run), fontsize=7.5, color=MUTED)


def part(axes: Axes, num_prefix_tokens: int) -> None:
    """No ticks, and a thin line after the prefix tokens, which come first."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if num_prefix_tokens:
        for line in (axes.axhline, axes.axvline):
            line(num_prefix_tokens - 0.5, color="white", linewidth=0.4)
