"""Figures of learned positions and filters, and of the features of images.

Axes: D embed_dim, C channels, P patch_size, gh gw patch grid, n images.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from vitcli.core.models.vit import TokenModel
from vitcli.core.nn.pos_embed import RelativeBias
from vitcli.core.spec import PatchSpec
from vitcli.core.spec.slots import PATCH_EMBEDS, POS_EMBEDS
from vitcli.plugins.embeddings.components import patch_colours, principal_directions
from vitcli.runner import figure_style as style
from vitcli.runner.data.extras import column_of
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import MARKS, FigureRow, RunFigure, source_of

MAX_FILTERS = 64
MAX_COMPONENTS = 28
MAX_PICTURES = 10
TILE = 0.95
"""Inches from one picture to the next."""
MAX_CLASSES = 15
"""Largest number of classes with a name in the map of features."""
MAX_MAPS = 16
"""Largest number of maps in a row or column; of a larger grid, some patches are shown."""


def positions_figure(tested: TrainedRun) -> RunFigure:
    model = tested.vit
    kind = model.spec.pos_embed
    biases = [m for m in model.modules() if isinstance(m, RelativeBias)]
    if biases:
        maps = torch.stack([_from_centre(bias, model.grid_size) for bias in biases])
        return RunFigure(
            draw_axes=partial(_draw_biases, maps.numpy()),
            title="Relative position bias",
            summary="The bias that each head adds to the scores of the middle patch, by layer.",
            source=source_of(tested),
        )
    if model.pos_embed is None:
        raise NoFigureError(POS_EMBEDS[kind].no_table or f"pos_embed {kind!r} has no table")
    table = model.pos_embed()[0, -model.grid_size[0] * model.grid_size[1] :].detach().cpu()
    unit = F.normalize(table, dim=-1)
    similarity = (unit @ unit.mT).view(*model.grid_size, *model.grid_size).numpy()
    return RunFigure(
        draw_axes=partial(_draw_similarity, similarity),
        title="Similarity of positions",
        summary=f"Cosine similarity between the {kind} positions of patches. The small map at"
        " row 2, column 3 compares the patch at row 2, column 3 with all patches.",
        source=source_of(tested),
    )


def _from_centre(bias: RelativeBias, grid: tuple[int, int]) -> Tensor:
    """Return the bias of the middle patch as a query: (h, gh, gw)."""
    table = bias.bias()[0].detach().cpu()
    middle = table.shape[-1] - grid[0] * grid[1] + (grid[0] // 2) * grid[1] + grid[1] // 2
    return table[:, middle, -grid[0] * grid[1] :].unflatten(-1, grid)


def _draw_similarity(maps: np.ndarray) -> Figure:
    rows, columns = maps.shape[:2]
    steps = (-(-rows // MAX_MAPS), -(-columns // MAX_MAPS))
    maps = maps[:: steps[0], :: steps[1]]
    rows, columns = maps.shape[:2]
    size = 5.6 / max(rows, columns)
    figsize = (columns * size + 1.2, rows * size + 0.3)
    names = _numbered("row", rows, steps[0]), _numbered("column", columns, steps[1])
    return _draw_maps(maps, figsize, names, (maps.min(), 1), "cosine similarity")


def _numbered(word: str, count: int, step: int) -> list[str]:
    return [f"{word} 1", *(str(1 + step * i) for i in range(1, count))]


def _draw_biases(maps: np.ndarray) -> Figure:
    layers, heads = maps.shape[:2]
    figsize = (1.2 + 0.9 * heads, 0.4 + 0.9 * layers)
    names = [f"layer {i + 1}" for i in range(layers)], [f"head {i + 1}" for i in range(heads)]
    largest = np.abs(maps).max() or 1.0
    return _draw_maps(maps, figsize, names, (-largest, largest), "added to the score")


def _draw_maps(
    maps: np.ndarray,
    figsize: tuple[float, float],
    names: tuple[list[str], list[str]],
    limits: tuple[float, float],
    label: str,
) -> Figure:
    figure = Figure(figsize=(max(figsize[0], 4.5), figsize[1]), layout="compressed")
    grid = figure.subplots(*maps.shape[:2], squeeze=False)
    rows, columns = names
    options: dict[str, Any] = {"row_names": rows, "column_names": columns, "cmap": "cividis"}
    image = style.draw_map_grid(grid, maps, **options, vmin=limits[0], vmax=limits[1])
    style.add_colour_bar(figure, image, grid, label)
    return figure


def filters_figure(tested: TrainedRun) -> RunFigure:
    model = tested.model
    weight = first_filters(model, tested.data.in_chans)  # (D, C, P, P)
    spec = model.spec
    if isinstance(spec, PatchSpec) and not PATCH_EMBEDS[spec.patch_embed].takes("stem_width"):
        directions, _ = principal_directions(weight.flatten(1))
        tiles = directions[:MAX_COMPONENTS].unflatten(1, weight.shape[1:])
        what = f"The first {len(tiles)} principal components of the {len(weight)} filters that"
        what += " embed a patch, as in figure 7 of Dosovitskiy et al. 2021."
    else:
        tiles = weight[:MAX_FILTERS]
        shown = "" if len(tiles) == len(weight) else f"the first {len(tiles)} of "
        what = f"The filters of the first convolution ({shown}{len(weight)})."
    return RunFigure(
        draw_axes=partial(_draw_filters, tiles.numpy()),
        title="Filters of the first layer",
        summary=f"{what} Each is scaled to its own range.",
        source=source_of(tested),
    )


def first_filters(model: nn.Module, in_chans: int) -> Tensor:
    """Return the weights of the first layer, (D, C, P, P); of shifted patches, those unshifted."""
    entry, side = model, 0
    if isinstance(model, TokenModel):
        entry, side = model.patch_embed, model.spec.patch_size
    for name, module in entry.named_modules():
        if isinstance(module, nn.Conv2d) and not name.startswith("head"):
            return module.weight.detach().cpu()
        if isinstance(module, nn.Linear) and side and not module.in_features % side**2:
            stack = module.weight.detach().cpu().unflatten(1, (-1, side, side))
            return stack[:, :in_chans]
    raise NoFigureError("no filters enter the images: neither a convolution nor a linear layer")


def _draw_filters(tiles: np.ndarray) -> Figure:
    columns = min(len(tiles), 14 if len(tiles) <= 28 else 16)
    rows = -(-len(tiles) // columns)
    figsize = (max(0.5 * columns, 4.5), 0.68 * rows)
    figure = Figure(figsize=figsize, layout="compressed")
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat:
        style.bare(axes)
    for number, (axes, tile) in enumerate(zip(grid.flat, tiles, strict=False), 1):
        axes.set_title(str(number), fontsize=7, loc="center", pad=2)
        picture = tile.transpose(1, 2, 0)
        low, high = picture.min(), picture.max()
        picture = (picture - low) / (high - low if high > low else 1)
        if picture.shape[-1] == 3:
            axes.imshow(picture)
        else:
            axes.imshow(picture.mean(-1), cmap=style.CMAP)
    return figure


def embeddings_figure(tested: TrainedRun) -> RunFigure:
    model, index = tested.model, tested.sample
    if not isinstance(model, TokenModel):
        raise NoFigureError(f"a {model.spec.family} has no tokens to pool")
    features = _features(tested, index, lambda x: model.pool(model.forward_features(x))).double()
    centred = features - features.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    places = (left * values)[:, :2].numpy()
    shares = (values**2 / (values**2).sum().clamp(min=1e-12)).tolist()
    if places.shape[1] < 2:
        raise NoFigureError("the figure needs at least two images; raise --num-images")
    labels, names = tested.data.test.labels[index].numpy(), [*tested.class_names]
    if column_of(tested.data.test.extra):  # an image has several labels, or a number
        labels, names = np.zeros_like(labels), ["any"]
    token = "CLS" if model.cls_token is not None else "pooled"
    return RunFigure(
        draw_axes=partial(_draw_embeddings, places, labels, names, shares),
        title=f"Map of the {token} features",
        summary=f"The {token} features that the classifier reads, on their first two principal"
        f" components ({100 * sum(shares[:2]):.0f} % of the variance).",
        details="Classes that overlap here may be separate in other directions.",
        source=source_of(tested, len(index)),
        numbers={"explained_variance": shares[:2], "n": len(index)},
    )


def _features(tested: TrainedRun, index: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        rows = [compute(images).float().cpu() for _, images in tested.batches(index)]
    return torch.cat(rows)


def _draw_embeddings(
    places: np.ndarray, labels: np.ndarray, names: list[str], shares: list[float]
) -> Figure:
    figure = Figure(figsize=(8.6, 5.0), layout="constrained")
    axes = figure.add_subplot()
    present, counts = np.unique(labels, return_counts=True)
    named = np.sort(present[np.argsort(-counts, kind="stable")[:MAX_CLASSES]])  # the most frequent
    if len(rest := places[~np.isin(labels, named)]):
        count = len(present) - len(named)
        name = f"{count} other classes ({len(rest):,})"
        grey: dict[str, Any] = {"color": style.FAINT, "edgecolors": style.MUTED, "linewidths": 0.4}
        axes.scatter(rest[:, 0], rest[:, 1], s=14, label=name, **grey)
    for i, label in enumerate(named):
        points = places[labels == label]
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=26,
            color=style.PALETTE[i % len(style.PALETTE)],
            marker=MARKS[i % len(MARKS)],
            edgecolors="white",
            linewidths=0.4,
            label=_legend_label(one_line(names[label], 80), len(points), len(named)),
        )
    style.add_legend_beside(axes, title="class (images)", title_fontsize=style.SMALL_SIZE)
    axes.set_xlabel(f"first component, {100 * shares[0]:.0f} % of the variance")
    axes.set_ylabel(f"second component, {100 * shares[1]:.0f} % of the variance")
    style.add_grid(axes)
    return figure


def _legend_label(name: str, num_images: int, num_classes: int) -> str:
    """Return a name and its number of images; of few classes, a long name takes two lines."""
    lines = style.wrap_text(name, 2.0, style.SMALL_SIZE, 2 if num_classes <= 8 else 1)
    # matplotlib leaves out labels that start with "_".
    return " " + lines.replace("\n", "\n ") + f" ({num_images:,})"


def features_figure(tested: TrainedRun) -> RunFigure:
    model = tested.model
    if not isinstance(model, TokenModel):
        raise NoFigureError(f"a {model.spec.family} has no tokens")
    index = torch.tensor(tested.first_of_each_class[:MAX_PICTURES])
    first = model.num_prefix_tokens
    features = _features(tested, index, lambda x: model.forward_features(x)[:, first:])
    grid = last_grid(model.grid_size, features.shape[1])
    colours, shares = patch_colours(features)
    pictures = [(tested.picture(i), one_line(tested.label(i), 80)) for i in index.tolist()]
    red, green, blue = (f"{100 * share:.0f}" for share in shares)
    return RunFigure(
        draw_axes=partial(_draw_features, pictures, colours.unflatten(1, grid).numpy()),
        title="Features of patches in colour",
        summary="Red, green and blue are the first three principal components of the features of"
        f" all patches shown: {red}, {green} and {blue} % of their variance. Equal colours mean"
        " similar features.",
        details="The features are those after the last norm, with the grid of the last layer. The"
        f" images are the first test image of each of the first {len(pictures)} classes.",
        source=source_of(tested, len(pictures)),
        numbers={"explained_variance": shares, "grid": list(grid), "n": len(index)},
    )


def last_grid(grid: tuple[int, int], count: int) -> tuple[int, int]:
    """Return the grid of ``count`` patches, which stages made by halving the embedded grid."""
    height, width = grid
    while height * width > count:
        height, width = -(-height // 2), -(-width // 2)
    if height * width != count:
        raise NoFigureError(f"the {count} tokens of the last layer are no grid of patches")
    return height, width


def _draw_features(pictures: list[tuple[np.ndarray, str]], colours: np.ndarray) -> Figure:
    count = len(pictures)
    figure = Figure(figsize=(max(TILE * count + 0.7, 4.5), 2 * TILE + 0.5), layout="compressed")
    grid = figure.subplots(2, count, squeeze=False)
    for (picture, name), colour, (above, below) in zip(pictures, colours, grid.T, strict=True):
        for axes, pixels in ((above, picture), (below, colour)):
            style.bare(axes)
            axes.imshow(pixels, aspect="auto" if pixels is colour else "equal")
        below.set_box_aspect(picture.shape[0] / picture.shape[1])
        above.set_title(style.wrap_text(name, TILE - 0.1, 7.5, 2), fontsize=7.5, loc="center")
    for axes, name in zip(grid[:, 0], ("image", "features"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    return figure


POSITIONS = FigureRow(make=positions_figure)
FILTERS = FigureRow(make=filters_figure)
EMBEDDINGS = FigureRow(make=embeddings_figure)
FEATURES = FigureRow(make=features_figure)
