"""The figure of an explanation: a map over its picture, or a grid of maps by layer and head."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from vitcli.runner.attn_map.captions import caption, head_names, map_title
from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.attn_map.matrices import draw_matrices, label_grid
from vitcli.runner.data.folder import SOFTWARE
from vitcli.runner.figure_style import (
    CMAP,
    TITLE_SIZE,
    add_colour_bar,
    add_share_bar,
    add_source,
    bare,
    draw_map_grid,
    encode,
    wrap_text,
)

Box = tuple[float, float, float, float]
"""Top, left, height, width."""

OPACITY = 0.6
DIMMED = 0.35
"""Brightness of the part of the picture outside the model's input, as a share of the original."""
TILE = 1.1
PANEL, WIDEST, TALLEST, LOWEST = 3.6, 7.4, 6.4, 0.4
"""Inches: the width of a picture beside its map, the width of a picture above its map, and the
largest and smallest height of a picture."""
STACKED = 0.55
"""A picture stands above its map if its height is a smaller share of its width than this."""
NARROWEST = 1.8
"""Inches: the smallest width of a title beside a narrow picture."""
LINE = 0.18
"""Inches of one title line."""
MOST_ASPECT = 4.0
"""Largest ratio of width to height for which a tile grows wider."""


def draw(explanation: Explanation, form: str, *, run: str, smooth: bool = False) -> bytes:
    """Return the figure as the bytes of a file. The same explanation gives the same bytes."""
    figure = partial(draw_figure, explanation, run=run, smooth=smooth)
    return encode(figure, form, software=SOFTWARE)


def draw_figure(explanation: Explanation, *, run: str, smooth: bool = False) -> Figure:
    """Draw the figure of the explanation's method."""
    if explanation.method == "head":
        return draw_heads(explanation, run)
    if explanation.method == "raw":
        return draw_matrices(explanation, run)
    return draw_overlay(explanation, run, smooth)


def draw_overlay(explanation: Explanation, run: str, smooth: bool) -> Figure:
    """Draw the picture, and the map over the picture beside it; below it for a wide picture.

    The figure is only as large as the two need.
    """
    ratio = explanation.picture.shape[0] / explanation.picture.shape[1]
    stacked = ratio < STACKED
    width = WIDEST if stacked else min(PANEL, TALLEST / ratio)
    height = max(width * ratio, LOWEST)
    across = max(width, NARROWEST)
    titles = [
        wrap_text(text, across, TITLE_SIZE)
        for text in (explanation.prediction or "picture", map_title(explanation))
    ]
    words = 0.3 + LINE * max(title.count("\n") for title in titles)
    size = (
        (across + 0.4, 2 * height + words + 1.05) if stacked else (2 * across + 1, height + words)
    )
    figure = Figure(figsize=size, layout="compressed" if across == width else "constrained")
    plain, covered = figure.subplots(*((2, 1) if stacked else (1, 2)))
    plain.imshow(explanation.picture)
    frame_model_input(plain, explanation)
    image = draw_map_over_model_input(covered, explanation, smooth)
    where = {"location": "bottom", "aspect": 50} if stacked else {"location": "right"}
    if explanation.method in ("gradcam", "grad-rollout"):
        add_colour_bar(figure, image, covered, "relevance", fraction=0.05, **where)
    else:
        add_share_bar(figure, image, covered, fraction=0.05, **where)
    for axes, title in zip((plain, covered), titles, strict=True):
        axes.set_title(title, loc="left" if across == width else "center")
        axes.set_axis_off()
    add_source(figure, caption(explanation, run))
    return figure


def map_scale(method: str, largest: float) -> Normalize:
    """Return the scale of a single map, from 0 to its largest value.

    The explorer uses the same scales. In a rollout, residual connections give a token's own patch
    far more than all others, so its scale is a square root.
    """
    exponent = 0.5 if method == "rollout" else 1.0
    return PowerNorm(exponent, vmin=0, vmax=largest or 1.0)


def draw_heads(explanation: Explanation, run: str) -> Figure:
    """Draw a grid of maps: layers from top to bottom, heads from left to right.

    The model's input stands on the left. All maps share one square-root colour scale, so that one
    strong head does not hide the rest.
    """
    maps = explanation.maps
    layers, heads, rows, columns = maps.shape
    top, left, height, width = explanation.box
    across = min(max(1.0, width / height), MOST_ASPECT)
    down = max(0.35, min(1.0, across * height / width))
    size = (1.6 + TILE * (heads + 1) * across, 0.5 + TILE * layers * down)
    figure = Figure(figsize=(max(5.5, size[0]), max(1.6, size[1])), layout="compressed")
    grid = figure.subplots(layers, heads + 1, squeeze=False)
    for axes in grid[:, 0]:
        bare(axes)
    picture = explanation.picture[top : top + height, left : left + width]
    grid[0, 0].imshow(picture, extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))  # in patches
    aspect = height / width * columns / rows
    grid[0, 0].set_aspect(aspect)
    image = draw_map_grid(
        grid[:, 1:],
        maps,
        row_names=[f"layer {layer}" for layer in explanation.layers],
        column_names=head_names(explanation),
        cmap=CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max() or 1.0),
        aspect=aspect,
    )
    for axes in (grid[0, 0], *grid[:, 1:].flat):
        frame_query(axes, explanation, (0, 0, rows, columns))
    label_grid(figure, image, grid, explanation, run)
    return figure


def draw_map_over_model_input(axes: Axes, explanation: Explanation, smooth: bool) -> AxesImage:
    """Draw the map over the model's input in grey, and the rest of the picture dimmed."""
    maps, picture = explanation.maps, explanation.picture
    top, left, height, width = explanation.box
    ground = (picture * DIMMED).astype(np.uint8)
    inside = np.s_[top : top + height, left : left + width]
    ground[inside] = picture[inside].mean(-1, keepdims=True)
    axes.imshow(ground)
    image = axes.imshow(
        maps,
        cmap=CMAP,
        norm=map_scale(explanation.method, maps.max()),
        alpha=OPACITY,
        extent=(left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5),
        interpolation="bicubic" if smooth else "nearest",
    )
    axes.set_xlim(-0.5, picture.shape[1] - 0.5)
    axes.set_ylim(picture.shape[0] - 0.5, -0.5)
    frame_query(axes, explanation, explanation.box)
    return image


def frame_model_input(axes: Axes, explanation: Explanation) -> None:
    """Draw a frame around the model's input, unless the input is the whole picture."""
    top, left, height, width = explanation.box
    if (height, width) != explanation.picture.shape[:2]:
        corner = (left - 0.5, top - 0.5)
        for colour, line in (("black", 2.5), ("white", 1.0)):  # visible on dark and on light
            axes.add_patch(
                Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line)
            )


def frame_query(axes: Axes, explanation: Explanation, box: Box) -> None:
    """Draw a white frame around the queried patch, if there is one.

    ``box`` is the model's input in the units of the axes.
    """
    if explanation.query is None:
        return
    (row, column), (rows, columns) = explanation.query, explanation.grid
    top, left, height, width = box
    size = (width / columns, height / rows)
    corner = (left - 0.5 + column * size[0], top - 0.5 + row * size[1])
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=1.5))
