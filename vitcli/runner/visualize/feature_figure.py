"""The figure of patch features in colour. Axes: n images, gh gw patch grid, D embed_dim."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitcli.core.inspect.components import patch_colours
from vitcli.core.models.vit import TokenModel
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.figure_style import bare, wrap_text
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, source_of

MAX_IMAGES = 10
TILE = 0.95
"""Inches from one image to the next."""


def features_figure(tested: TrainedRun) -> RunFigure:
    """Return a figure of the first three principal components of patch features, as colours.

    The images are the first of their class, so that nobody selected them.
    """
    model = tested.model
    if not isinstance(model, TokenModel):
        raise NoFigureError(f"a {model.spec.family} has no tokens")
    index = torch.tensor(tested.first_of_each_class[:MAX_IMAGES])
    features = patch_features(tested, model, index)
    grid = last_grid(model.grid_size, features.shape[1])
    colours, shares = patch_colours(features)
    names, labels = tested.class_names, tested.data.test.labels
    pictures = [(tested.picture(i), one_line(names[int(labels[i])], 80)) for i in index.tolist()]
    red, green, blue = (f"{100 * share:.0f}" for share in shares)
    return RunFigure(
        draw_axes=partial(_draw, pictures, colours.unflatten(1, grid).numpy()),
        title="Features of patches in colour",
        summary="Red, green and blue are the first three principal components of the features of"
        f" all patches shown: {red}, {green} and {blue} % of their variance. Equal colours mean"
        " similar features.",
        details="The features are those after the last norm, with the grid of the last layer. The"
        f" images are the first test image of each of the first {len(pictures)} classes.",
        source=source_of(tested, len(pictures)),
        numbers={"explained_variance": shares, "grid": list(grid), "n": len(index)},
    )


def patch_features(tested: TrainedRun, model: TokenModel, index: Tensor) -> Tensor:
    """Return the features of the patches of test images after the last norm, (n, P, D)."""
    rows = []
    with torch.no_grad():
        for _, images in tested.batches(index):
            tokens = model.forward_features(images)
            rows.append(tokens[:, model.num_prefix_tokens :].float().cpu())
    return torch.cat(rows)


def last_grid(grid: tuple[int, int], count: int) -> tuple[int, int]:
    """Return the grid of ``count`` patches, which stages made by halving the embedded grid."""
    height, width = grid
    while height * width > count:
        height, width = -(-height // 2), -(-width // 2)
    if height * width != count:
        raise NoFigureError(f"the {count} tokens of the last layer are no grid of patches")
    return height, width


def _draw(pictures: list[tuple[np.ndarray, str]], colours: np.ndarray) -> Figure:
    count = len(pictures)
    figure = Figure(figsize=(max(TILE * count + 0.7, 4.5), 2 * TILE + 0.5), layout="compressed")
    grid = figure.subplots(2, count, squeeze=False)
    for (picture, name), colour, (above, below) in zip(pictures, colours, grid.T, strict=True):
        for axes, pixels in ((above, picture), (below, colour)):
            bare(axes)
            axes.imshow(pixels, aspect="auto" if pixels is colour else "equal")
        below.set_box_aspect(picture.shape[0] / picture.shape[1])
        above.set_title(wrap_text(name, TILE - 0.1, 7.5, 2), fontsize=7.5, loc="center")
    for axes, name in zip(grid[:, 0], ("image", "features"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    return figure
