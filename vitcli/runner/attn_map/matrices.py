"""A figure of whole attention matrices, layers from top to bottom, heads from left to right.

Axes: L layers, h heads, N tokens (prefix first).
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from vitcli.runner.attn_map.captions import caption, head_names, headline
from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.figure_style import (
    CMAP,
    add_share_bar,
    add_source,
    add_title,
    draw_map_grid,
)

TILES = (1.4, 2.4)
"""Inches of a matrix in a large grid: with few tokens and with many."""
ALONE = 4.0
"""Inches that the longer side of the grid has at least."""
TOKENS_PER_INCH = 100
MAX_TICKS = 8
"""Largest number of rows of patches with a tick."""


def draw_matrices(explanation: Explanation, run: str) -> Figure:
    """Draw the matrices (L, h, N, N) as a grid. A row of a matrix is a query, a column a key.

    All matrices share one square-root colour scale, so that one strong head does not hide the rest.
    """
    maps = explanation.maps
    layers, heads, count, _ = maps.shape
    tile = min(max(TILES[0], count / TOKENS_PER_INCH), TILES[1])
    tile = max(tile, ALONE / max(layers, heads))
    size = (max(5.5, 1.7 + tile * heads), 0.8 + tile * layers)
    figure = Figure(figsize=size, layout="compressed")
    grid = figure.subplots(layers, heads, squeeze=False)
    image = draw_map_grid(
        grid,
        maps,
        row_names=[f"layer {layer}\nfrom row of patches" for layer in explanation.layers],
        column_names=head_names(explanation),
        cmap=CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max()),
    )
    places, names = token_ticks(explanation)
    for axes in grid.flat:
        mark_prefix(axes, explanation.num_prefix_tokens)
    for axes in grid[:, 0]:
        axes.set_yticks(places, names, fontsize=7)
    for axes in grid[-1]:
        axes.set_xticks(places, names, fontsize=7)
        axes.set_xlabel("to row of patches", fontsize=8)
    label_grid(figure, image, grid, explanation, run)
    return figure


def token_ticks(explanation: Explanation) -> tuple[list[int], list[str]]:
    """Return ticks at the prefix, and at the first patch of each row or of every few rows.

    If there is a prefix, the first row has no tick, because there is no room beside the prefix.
    """
    first, (rows, columns) = explanation.num_prefix_tokens, explanation.grid
    step = -(-rows // MAX_TICKS)
    chosen = [row for row in range(0, rows, step) if row or not first]
    places = [first + row * columns for row in chosen]
    prefix = "CLS" if explanation.has_cls else "prefix"
    names = [str(row + 1) for row in chosen]
    return ([0, *places], [prefix, *names]) if first else (places, names)


def label_grid(
    figure: Figure, image: AxesImage, grid: np.ndarray, explanation: Explanation, run: str
) -> None:
    add_share_bar(figure, image, grid, fraction=0.05, aspect=40)
    add_title(figure, headline(explanation))
    add_source(figure, caption(explanation, run))


def mark_prefix(axes: Axes, num_prefix_tokens: int) -> None:
    """Draw thin lines between the prefix tokens, which come first, and the patches."""
    if num_prefix_tokens:
        for line in (axes.axhline, axes.axvline):
            line(num_prefix_tokens - 0.5, color="white", linewidth=0.4)
