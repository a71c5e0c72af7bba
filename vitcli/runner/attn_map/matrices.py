"""A figure of whole attention matrices, layers from top to bottom, heads from left to right.

Axes: L layers, h heads, N tokens (prefix first).
"""

from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vitcli.runner.attn_map.captions import caption, head_names, headline
from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.figure_style import CMAP, MUTED, draw_map_grid

TILES = (1.4, 2.4)
"""Inches of a matrix in a large grid: with few tokens and with many."""
ALONE = 4.0
"""Inches that the longer side of the grid has at least."""
TOKENS_PER_INCH = 100


def draw_matrices(explanation: Explanation, run: str) -> Figure:
    """Draw the matrices (L, h, N, N) as a grid. A row of a matrix is a query, a column a key.

    All matrices share one square-root colour scale, so that one strong head does not hide the rest.
    """
    maps = explanation.maps
    layers, heads, count, _ = maps.shape
    tile = min(max(TILES[0], count / TOKENS_PER_INCH), TILES[1])
    tile = max(tile, ALONE / max(layers, heads))
    size = (max(5.5, 1.5 + tile * heads), 1.2 + tile * layers)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    image = draw_map_grid(
        grid,
        maps,
        row_names=[f"layer {layer}\nfrom" for layer in explanation.layers],
        column_names=head_names(explanation),
        cmap=CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max()),
    )
    for axes in grid.flat:
        mark_prefix(axes, explanation.num_prefix_tokens)
    for axes in grid[-1]:
        axes.set_xlabel("to", fontsize=8)
    bar = figure.colorbar(image, ax=grid, fraction=0.05, pad=0.02, aspect=40)
    label_grid(figure, bar, explanation, run)
    return figure


def label_grid(figure: Figure, bar: Colorbar, explanation: Explanation, run: str) -> None:
    """Add the title, the caption and the unit of the colours to a grid of maps."""
    bar.set_label("share of attention (square-root scale)")
    figure.suptitle(headline(explanation), fontsize=9)
    figure.supxlabel(caption(explanation, run), fontsize=7.5, color=MUTED)


def mark_prefix(axes: Axes, num_prefix_tokens: int) -> None:
    """Draw thin lines between the prefix tokens, which come first, and the patches."""
    if num_prefix_tokens:
        for line in (axes.axhline, axes.axvline):
            line(num_prefix_tokens - 0.5, color="white", linewidth=0.4)
