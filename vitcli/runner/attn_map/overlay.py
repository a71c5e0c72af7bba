"""A map laid over its picture, or a grid of them; for a screen, a page or a paper."""

import textwrap
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from vitcli.runner.attn_map.captions import asked, caption, head_names
from vitcli.runner.attn_map.explain import SOFTWARE, Explanation
from vitcli.runner.attn_map.matrices import describe, matrix_grid
from vitcli.runner.figure_style import CMAP, MUTED, encode
from vitcli.runner.text import one_line

OPACITY = 0.6
DIMMED = 0.35
"""How much of its brightness a part keeps that the model did not see."""
TILE = 1.1
PANEL, WIDEST, TALLEST, LOWEST = 3.6, 7.4, 6.4, 0.4
"""Inches: the width of a picture beside its map, of one above it, and limits of their height."""
STACKED = 0.55
"""Pictures with less height than this share of their width stand above their map."""
LETTERS_PER_INCH = 13.0
LINE = 0.18
"""Inches of a line of a title."""
MOST_ASPECT = 4.0
"""A map that is longer is not drawn longer."""
UNITS = {"grad-rollout": "relevance", "gradcam": "relevance"}
"""What the numbers of a method are, where they are no shares of attention."""


def draw(look: Explanation, form: str, *, run: str, smooth: bool = False) -> bytes:
    """The figure as a file's bytes; the same look gives the same bytes."""
    figures = {"head": partial(heads_grid, look, run), "raw": partial(matrix_grid, look, run)}
    drawing = figures.get(look.method, partial(overlay, look, run, smooth))
    return encode(drawing, form, software=SOFTWARE)


def overlay(look: Explanation, run: str, smooth: bool) -> Figure:
    """The picture as it is, and the picture under its map: side by side, or a wide one above.

    The figure is as large as the two need, so that no room is left blank.
    """
    ratio = look.picture.shape[0] / look.picture.shape[1]
    stacked = ratio < STACKED
    width = WIDEST if stacked else min(PANEL, TALLEST / ratio)
    title = textwrap.fill(asked(look), max(18, int(LETTERS_PER_INCH * width)))
    height = max(width * ratio, LOWEST)
    words = 0.5 + LINE * title.count("\n")
    size = (width + 0.4, 2 * height + words + 1.05) if stacked else (2 * width + 1, height + words)
    figure = Figure(figsize=size, layout="compressed")
    plain, covered = figure.subplots(*((2, 1) if stacked else (1, 2)))
    plain.imshow(look.picture)
    frame(plain, look)
    plain.set_title(f"{one_line(look.label)}, {100 * look.probability:.1f} %", loc="left")
    shown = lay_over(covered, look, look.maps, look.maps.max() or 1.0, smooth)
    covered.set_title(title, loc="left")
    where = {"location": "bottom", "aspect": 50} if stacked else {"location": "right"}
    bar = figure.colorbar(shown, ax=covered, fraction=0.05, pad=0.02, **where)
    bar.set_label(UNITS.get(look.method, "share of attention"))
    for axes in (plain, covered):
        axes.set_axis_off()
    figure.supxlabel(caption(look, run), fontsize=7.5, color=MUTED)
    return figure


def heads_grid(look: Explanation, run: str) -> Figure:
    """Layers from top to bottom, heads from left to right; what the model saw on the left.

    One colour scale for all, by the square root, so that one strong head does not hide the rest.
    """
    layers, heads = look.maps.shape[:2]
    top, left, height, width = look.box
    across = min(max(1.0, width / height), MOST_ASPECT)
    down = max(0.35, min(1.0, across * height / width))
    size = (1.6 + TILE * (heads + 1) * across, 1.0 + TILE * layers * down)
    figure = Figure(figsize=(max(5.5, size[0]), size[1]), layout="constrained")
    grid = figure.subplots(layers, heads + 1, squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    seen = (-0.5, look.maps.shape[-1] - 0.5, look.maps.shape[-2] - 0.5, -0.5)  # in patches
    grid[0, 0].imshow(look.picture[top : top + height, left : left + width], extent=seen)
    mark_patch(grid[0, 0], look)
    scale = PowerNorm(0.5, vmin=0, vmax=look.maps.max() or 1.0)
    aspect = height / width * look.maps.shape[-1] / look.maps.shape[-2]
    for i, row in enumerate(grid):
        for j, axes in enumerate(row[1:]):
            shown = axes.imshow(look.maps[i, j], cmap=CMAP, norm=scale, aspect=aspect)
            mark_patch(axes, look)
            if i == 0:
                axes.set_title(head_names(look)[j], fontsize=8, loc="center")
        row[1].set_ylabel(f"layer {look.layers[i]}", fontsize=8)
    grid[0, 0].set_aspect(aspect)
    describe(figure, figure.colorbar(shown, ax=grid, fraction=0.05, pad=0.02, aspect=40), look, run)
    return figure


def mark_patch(axes: Axes, look: Explanation) -> None:
    """A white square around the patch that was asked about, on axes counted in patches."""
    if look.query is not None:
        corner = (look.query[1] - 0.5, look.query[0] - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=1.5))


def lay_over(
    axes: Axes, look: Explanation, values: np.ndarray, largest: float, smooth: bool
) -> AxesImage:
    """The map over what the model saw; the rest of the picture is dimmed."""
    top, left, height, width = look.box
    dimmed = (look.picture * DIMMED).astype(np.uint8)
    inside = np.s_[top : top + height, left : left + width]
    dimmed[inside] = look.picture[inside].mean(-1, keepdims=True)  # grey, so that colour is the map
    axes.imshow(dimmed)
    shown = axes.imshow(
        values,
        cmap=CMAP,
        vmin=0,
        vmax=largest,
        alpha=OPACITY,
        extent=(left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5),
        interpolation="bicubic" if smooth else "nearest",
    )
    axes.set_xlim(-0.5, look.picture.shape[1] - 0.5)
    axes.set_ylim(look.picture.shape[0] - 0.5, -0.5)
    mark_query(axes, look)
    return shown


def frame(axes: Axes, look: Explanation) -> None:
    """A line around what the model saw, where that is not everything."""
    top, left, height, width = look.box
    if (height, width) != look.picture.shape[:2]:
        corner = (left - 0.5, top - 0.5)
        for colour, line in (("black", 2.5), ("white", 1.0)):  # to be seen on any ground
            axes.add_patch(
                Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line)
            )


def mark_query(axes: Axes, look: Explanation) -> None:
    """A white square around the patch that was asked about."""
    if look.query is None:
        return
    top, left, height, width = look.box
    rows, columns = look.maps.shape[-2:]
    size = (width / columns, height / rows)
    corner = (left - 0.5 + look.query[1] * size[0], top - 0.5 + look.query[0] * size[1])
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=1.5))
