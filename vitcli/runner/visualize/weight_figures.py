"""What is learned before any picture is seen, and where pictures end up.

Axes: D embed_dim, C channels, P patch_size, gh gw patch grid, n images.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from vitcli.core.models.token_model import TokenModel
from vitcli.core.nn.pos_embed import RelativeBias
from vitcli.runner.figure_style import FAINT, INK, MUTED
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import CMAP, MARKS, PALETTE, RunFigure, about, bare
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet

MAX_FILTERS = 64
MAX_MAPS = 16
"""A grid with more rows or columns of patches shows every other one, or fewer."""


def pos_embed(subject: RunOnTestSet) -> RunFigure:
    """How alike the positions of any two patches are; for a relative bias, the bias itself."""
    model = subject.vit
    kind = model.spec.pos_embed
    biases = [m for m in model.modules() if isinstance(m, RelativeBias)]
    if biases:
        maps = torch.stack([_from_centre(bias, model.grid_size) for bias in biases])
        text = "What each head adds to the scores of the patch in the middle, by layer."
        return _biases(subject, maps, text)
    if model.pos_embed is None:
        reason = {"none": "the model has no positions", "rope2d": "rope2d turns q and k; no table"}
        raise NoFigureError(reason[kind])
    table = model.pos_embed()[0, -model.grid_size[0] * model.grid_size[1] :].detach().cpu()
    unit = F.normalize(table, dim=-1)
    likeness = (unit @ unit.mT).view(*model.grid_size, *model.grid_size).numpy()
    return RunFigure(
        draw=partial(_likeness, likeness),
        title="Similarity of positions",
        caption=about(
            subject,
            f"Cosine similarity of the {kind} position of each patch with those of all patches;"
            " the small map at row 2, column 3 is that patch's.",
        ),
    )


def _from_centre(bias: RelativeBias, grid: tuple[int, int]) -> Tensor:
    """(h, gh, gw): the row of the middle patch."""
    table = bias.bias()[0].detach().cpu()
    middle = table.shape[-1] - grid[0] * grid[1] + (grid[0] // 2) * grid[1] + grid[1] // 2
    return table[:, middle, -grid[0] * grid[1] :].unflatten(-1, grid)


def _likeness(maps: np.ndarray) -> Figure:
    rows, columns = maps.shape[:2]
    steps = (-(-rows // MAX_MAPS), -(-columns // MAX_MAPS))
    maps = maps[:: steps[0], :: steps[1]]
    rows, columns = maps.shape[:2]
    size = 5.6 / max(rows, columns)
    figure = Figure(figsize=(columns * size + 0.9, rows * size), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in np.ndenumerate(grid):
        bare(axes)
        image = axes.imshow(maps[place], cmap="cividis", vmin=maps.min(), vmax=1)
    figure.colorbar(image, ax=grid, fraction=0.04, pad=0.02).set_label("cosine similarity")
    return figure


def _biases(subject: RunOnTestSet, maps: Tensor, text: str) -> RunFigure:
    return RunFigure(
        draw=partial(_bias_maps, maps.numpy()),
        title="Relative position bias",
        caption=about(subject, text),
    )


def _bias_maps(maps: np.ndarray) -> Figure:
    layers, heads = maps.shape[:2]
    figure = Figure(figsize=(1.0 + 0.9 * heads, 0.4 + 0.9 * layers), layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    largest = np.abs(maps).max() or 1.0
    for (layer, head), axes in np.ndenumerate(grid):
        bare(axes)
        image = axes.imshow(maps[layer, head], cmap="cividis", vmin=-largest, vmax=largest)
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=8, loc="center")
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", fontsize=8)
    figure.colorbar(image, ax=grid, fraction=0.04, pad=0.02).set_label("added to the score")
    return figure


def filters(subject: RunOnTestSet) -> RunFigure:
    """What the first layer looks for: filters, or the main directions among many patch filters."""
    model = subject.predictor.model
    weight = first_filters(model, subject.predictor.in_chans)  # (D, C, P, P)
    is_cut = isinstance(model, TokenModel) and model.spec.family != "coatnet"
    if is_cut and model.spec.patch_embed in ("linear", "conv"):
        tiles = principal_components(weight)
        what = f"The first {len(tiles)} principal components of the {len(weight)} filters that"
        what += " embed a patch, as in figure 7 of Dosovitskiy et al. 2021;"
    else:
        tiles = weight[:MAX_FILTERS]
        shown = "" if len(tiles) == len(weight) else f"the first {len(tiles)} of "
        what = f"The filters of the first convolution ({shown}{len(weight)}),"
    return RunFigure(
        draw=partial(_filters, tiles.numpy()),
        title="Filters of the first layer",
        caption=about(subject, f"{what} each scaled to its own range."),
    )


def first_filters(model: nn.Module, in_chans: int) -> Tensor:
    """The weights that pixels meet first, (D, C, P, P)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return module.weight.detach().cpu()
        if isinstance(module, nn.Linear):
            side = round((module.in_features / in_chans) ** 0.5)
            return module.weight.detach().cpu().unflatten(1, (in_chans, side, side))
    raise NoFigureError("the model has no filters")


def principal_components(weight: Tensor, count: int = 28) -> Tensor:
    """The directions of largest variance among filters: (D, C, P, P) -> (count, C, P, P)."""
    rows = weight.flatten(1)
    _, _, directions = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    directions = directions[:count]
    # a direction has no sign of its own; the larger side is shown bright
    flip = directions.sum(1).sign()
    flip[flip == 0] = 1
    return (directions * flip[:, None]).unflatten(1, weight.shape[1:])


def _filters(tiles: np.ndarray) -> Figure:
    columns = min(len(tiles), 14 if len(tiles) <= 28 else 16)
    rows = -(-len(tiles) // columns)
    figure = Figure(figsize=(0.5 * columns, 0.5 * rows), layout="constrained")
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat:
        bare(axes)
    for axes, tile in zip(grid.flat, tiles, strict=False):
        picture = tile.transpose(1, 2, 0)
        low, high = picture.min(), picture.max()
        picture = (picture - low) / (high - low if high > low else 1)
        if picture.shape[-1] == 3:
            axes.imshow(picture)
        else:
            axes.imshow(picture.mean(-1), cmap=CMAP)
    return figure


def embeddings(subject: RunOnTestSet) -> RunFigure:
    """Pooled features of images on their two main axes."""
    model, index = subject.predictor.model, subject.sample
    if not isinstance(model, TokenModel):
        raise NoFigureError(f"a {model.spec.family} has no tokens to pool")
    rows = []
    with torch.no_grad():
        for _, images in subject.portions(index):
            rows.append(model.pool(model.forward_features(images)).float().cpu())
    features = torch.cat(rows).double()
    centred = features - features.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    places = (left * values)[:, :2].numpy()
    shares = (values**2 / (values**2).sum().clamp(min=1e-12)).tolist()
    if places.shape[1] < 2:
        raise NoFigureError("two images at least are needed for a plane")
    labels = subject.data.test.labels[index].numpy()
    token = "CLS" if model.cls_token is not None else "pooled"
    return RunFigure(
        draw=partial(_embeddings, places, labels, list(subject.predictor.names), shares),
        title=f"Map of the {token} features",
        caption=about(
            subject,
            f"The {token} features that the classifier reads, on their first two principal"
            f" components ({100 * sum(shares[:2]):.0f} % of the variance); names stand at the"
            " class means. Linear: what overlaps here may still lie apart in other directions.",
            len(index),
        ),
        numbers={"explained_variance": shares[:2], "n": len(index)},
    )


def _embeddings(
    places: np.ndarray, labels: np.ndarray, names: list[str], shares: list[float]
) -> Figure:
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.add_subplot()
    for label in np.unique(labels):
        points = places[labels == label]
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=12,
            color=PALETTE[label % len(PALETTE)],
            marker=MARKS[label % len(MARKS)],
            alpha=0.55,
            linewidths=0,
        )
    for label in np.unique(labels) if len(names) <= 2 * len(MARKS) else ():
        axes.annotate(
            one_line(names[label], 14),
            places[labels == label].mean(0),
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            bbox={
                "boxstyle": "round,pad=0.2",
                "facecolor": "white",
                "edgecolor": FAINT,
                "alpha": 0.9,
            },
        )
    axes.set_xlabel(f"first component, {100 * shares[0]:.0f} % of the variance")
    axes.set_ylabel(f"second component, {100 * shares[1]:.0f} %")
    axes.tick_params(colors=MUTED)
    return figure
