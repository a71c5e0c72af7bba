"""The figure of an explanation: a map over its picture, or a grid of maps by layer and head.

Axes: gh gw patch grid, L layers, h heads, N tokens (prefix first).
"""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from vitcli.runner import figure_style as style
from vitcli.runner.attn_map.explain import MORE_THAN_WEIGHTS, Explanation
from vitcli.runner.data.folder import SOFTWARE
from vitcli.runner.text import one_line, quantity

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
TILES = (1.4, 2.4)
"""Inches of a matrix in a large grid: with few tokens and with many."""
ALONE = 4.0
"""Inches that the longer side of the grid has at least."""
TOKENS_PER_INCH = 100
MAX_TICKS = 8


def draw(explanation: Explanation, form: str, *, run: str) -> bytes:
    """Return the figure as the bytes of a file. The same explanation gives the same bytes."""
    figure = partial(draw_figure, explanation, run=run)
    return style.encode(figure, form, software=SOFTWARE)


def draw_figure(explanation: Explanation, *, run: str) -> Figure:
    if explanation.method == "head":
        return draw_heads(explanation, run)
    if explanation.method == "raw":
        return draw_matrices(explanation, run)
    return draw_overlay(explanation, run)


def draw_overlay(explanation: Explanation, run: str) -> Figure:
    """Draw the picture, and the map over the picture beside it; below it for a wide picture."""
    ratio = explanation.picture.shape[0] / explanation.picture.shape[1]
    stacked = ratio < STACKED
    width = WIDEST if stacked else min(PANEL, TALLEST / ratio)
    height = max(width * ratio, LOWEST)
    across = max(width, NARROWEST)
    titles = [
        style.wrap_text(text, across, style.TITLE_SIZE)
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
    image = draw_map_over_model_input(covered, explanation)
    where = {"location": "bottom", "aspect": 50} if stacked else {"location": "right"}
    if explanation.method in ("gradcam", "grad-rollout"):
        style.add_colour_bar(figure, image, covered, "relevance", fraction=0.05, **where)
    else:
        style.add_share_bar(figure, image, covered, fraction=0.05, **where)
    for axes, title in zip((plain, covered), titles, strict=True):
        axes.set_title(title, loc="left" if across == width else "center")
        axes.set_axis_off()
    style.add_source(figure, caption(explanation, run))
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
        style.bare(axes)
    picture = explanation.picture[top : top + height, left : left + width]
    grid[0, 0].imshow(picture, extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))  # in patches
    aspect = height / width * columns / rows
    grid[0, 0].set_aspect(aspect)
    image = style.draw_map_grid(
        grid[:, 1:],
        maps,
        row_names=[f"layer {layer}" for layer in explanation.layers],
        column_names=head_names(explanation),
        cmap=style.CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max() or 1.0),
        aspect=aspect,
    )
    for axes in (grid[0, 0], *grid[:, 1:].flat):
        frame_query(axes, explanation, (0, 0, rows, columns))
    _label_grid(figure, image, grid, explanation, run)
    return figure


def draw_matrices(explanation: Explanation, run: str) -> Figure:
    """Draw (L, h, N, N) on one square-root scale; a row of a matrix is a query, a column a key."""
    maps = explanation.maps
    layers, heads, count, _ = maps.shape
    tile = min(max(TILES[0], count / TOKENS_PER_INCH), TILES[1])
    tile = max(tile, ALONE / max(layers, heads))
    size = (max(5.5, 1.7 + tile * heads), 0.8 + tile * layers)
    figure = Figure(figsize=size, layout="compressed")
    grid = figure.subplots(layers, heads, squeeze=False)
    image = style.draw_map_grid(
        grid,
        maps,
        row_names=[f"layer {layer}\nfrom row of patches" for layer in explanation.layers],
        column_names=head_names(explanation),
        cmap=style.CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max()),
    )
    places, names = _token_ticks(explanation)
    if prefix := explanation.num_prefix_tokens:  # thin lines between these tokens and the patches
        for axes in grid.flat:
            for line in (axes.axhline, axes.axvline):
                line(prefix - 0.5, color="white", linewidth=0.4)
    for axes in grid[:, 0]:
        axes.set_yticks(places, names, fontsize=7)
    for axes in grid[-1]:
        axes.set_xticks(places, names, fontsize=7)
        axes.set_xlabel("to row of patches", fontsize=8)
    _label_grid(figure, image, grid, explanation, run)
    return figure


def _token_ticks(explanation: Explanation) -> tuple[list[int], list[str]]:
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


def _label_grid(
    figure: Figure, image: AxesImage, grid: np.ndarray, explanation: Explanation, run: str
) -> None:
    style.add_share_bar(figure, image, grid, fraction=0.05, aspect=40)
    title, prediction = map_title(explanation), explanation.prediction
    style.add_title(figure, title if prediction is None else f"{prediction}: {title}")
    style.add_source(figure, caption(explanation, run))


def draw_map_over_model_input(axes: Axes, explanation: Explanation) -> AxesImage:
    maps, picture = explanation.maps, explanation.picture
    top, left, height, width = explanation.box
    ground = (picture * DIMMED).astype(np.uint8)
    inside = np.s_[top : top + height, left : left + width]
    ground[inside] = picture[inside].mean(-1, keepdims=True)
    axes.imshow(ground)
    image = axes.imshow(
        maps,
        cmap=style.CMAP,
        norm=map_scale(explanation.method, maps.max()),
        alpha=OPACITY,
        extent=(left - 0.5, left + width - 0.5, top + height - 0.5, top - 0.5),
        interpolation="nearest",
    )
    axes.set_xlim(-0.5, picture.shape[1] - 0.5)
    axes.set_ylim(picture.shape[0] - 0.5, -0.5)
    frame_query(axes, explanation, explanation.box)
    return image


def frame_model_input(axes: Axes, explanation: Explanation) -> None:
    top, left, height, width = explanation.box
    if (height, width) != explanation.picture.shape[:2]:
        corner = (left - 0.5, top - 0.5)
        for colour, line in (("black", 2.5), ("white", 1.0)):  # visible on dark and on light
            axes.add_patch(
                Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line)
            )


def frame_query(axes: Axes, explanation: Explanation, box: Box) -> None:
    """Draw a white frame around the queried patch; ``box`` is the input in units of the axes."""
    if explanation.query is None:
        return
    (row, column), (rows, columns) = explanation.query, explanation.grid
    top, left, height, width = box
    size = (width / columns, height / rows)
    corner = (left - 0.5 + column * size[0], top - 0.5 + row * size[1])
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=1.5))


def map_title(explanation: Explanation) -> str:
    who, verb = explanation.reader, "attends" if explanation.reader == "CLS" else "attend"
    if explanation.second_reader is not None:
        who, verb = f"{who} and the {explanation.second_reader} token", "attend"
    if explanation.query is not None:
        who, verb = "the framed patch", "attends"
    class_name = one_line(explanation.explained_class or "", 48)
    return {
        "cls": f"what {who} {verb} to",
        "rollout": f"attention rollout, from {who}",
        "grad-rollout": f"gradient rollout for {class_name}, from {who}",
        "gradcam": f"Grad-CAM for {class_name}",
        "head": f"attention of {who}",
        "raw": "what every token attends to",
    }[explanation.method]


def caption(explanation: Explanation, run: str) -> str:
    """Return the run, layers, heads and tokens, for readers who see only the figure."""
    heads = f", mean of {quantity(len(explanation.heads), 'head')}"
    is_by_head = explanation.method in ("head", "raw", "gradcam")
    if is_by_head and not explanation.are_heads_averaged:
        heads = ""
    rows, columns = explanation.grid
    tokens = f"{rows}x{columns} patches"
    if explanation.method == "raw" and explanation.num_prefix_tokens:
        tokens = f"tokens: {explanation.num_prefix_tokens} prefix, then {tokens}"
    facts = f"{one_line(run, 40)}; {layer_names(explanation)}{heads}; {tokens}"
    return facts if explanation.states_all else f"{facts}. {MORE_THAN_WEIGHTS}"


def head_names(explanation: Explanation) -> list[str]:
    names = [f"head {head}" for head in explanation.heads]
    return ["mean"] if explanation.are_heads_averaged else names


def layer_names(explanation: Explanation) -> str:
    last, depth = max(explanation.layers), explanation.depth
    if explanation.method == "grad-rollout":
        return "all layers"
    if explanation.method == "rollout" and last > 1:
        return f"layers 1 to {last} of {depth}"
    if explanation.layers == (0,):
        return "embedded patches" if explanation.depth else "the last feature map"
    layers = ", ".join(map(str, explanation.layers))
    return f"{'layers' if len(explanation.layers) > 1 else 'layer'} {layers} of {depth}"
