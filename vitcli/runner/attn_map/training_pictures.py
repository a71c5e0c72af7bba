"""Pictures during training, of the same few test images each time: attention, and the task's own.

Axes: B images, C channels, H W pixels, gh gw patch grid, L layers, h heads.
"""

from collections.abc import Iterator
from contextlib import suppress

import matplotlib
import numpy as np
import torch
from torch import Tensor, nn

from vitcli.core.data.augment import normalize
from vitcli.core.data.source import DataSet, Images
from vitcli.core.inspect.maps import MapRequest, head_maps
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import NoMapError
from vitcli.core.objectives.objective import Task
from vitcli.core.objectives.pictures import Grid
from vitcli.core.spec import DataSpec
from vitcli.core.torch_use import evaluating
from vitcli.runner.data.arrays import rank_in_class
from vitcli.runner.data.contact_sheet import arrange_rows, tile_size, to_rgb
from vitcli.runner.figure_style import CMAP
from vitcli.runner.run.tensorboard import PICTURES, TASK_PICTURES

COUNT = 8
MAX_BYTES = 2**28
"""Largest size of the attention weights that are computed at once. A training draws no pictures if
one image and layer need more."""


def training_pictures(
    task: Task, module: nn.Module, data: DataSet
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield TensorBoard's tag and pixels of where the model looks, and of what the task shows."""
    model = type(task).encoder(module)
    if (
        isinstance(model, VisionTransformer)
        and model.has_attention_weights
        and weight_bytes(model) <= MAX_BYTES
    ):
        images = data.val or data.test
        pixels = images.pixels[fixed_index(images)]
        with suppress(NoMapError):
            yield PICTURES, attention_strip(model, pixels, task.spec.data)
    for name, picture in fixed_pictures(task, module, data)[0].items():
        yield TASK_PICTURES + name, picture_sheet(picture)


def fixed_index(images: Images) -> Tensor:
    """Return the first image of each class, then the second, up to ``COUNT``: (B,) int64."""
    labels = images.labels.cpu()
    turns = rank_in_class(labels) * (labels.max() + 1) + labels
    return turns.argsort()[:COUNT].to(images.pixels.device)


def weight_bytes(model: VisionTransformer) -> int:
    return 4 * model.spec.num_heads * model.token_shape.num_tokens**2


def attention_strip(model: VisionTransformer, pixels: Tensor, data: DataSpec) -> np.ndarray:
    """Draw images (B, C, H, W) in a row and their maps by layer below: (height, width, 3) uint8.

    A map is the attention of the tokens that the classifier reads, averaged over heads. All maps
    share one square-root scale. No random numbers are drawn, and the model's mode is restored.
    """
    maps = mean_maps(model, pixels, data)
    shares = (maps / max(float(maps.max()), 1e-12)) ** 0.5
    colours = matplotlib.colormaps[CMAP](shares, bytes=True)[..., :3]  # (B, L, gh, gw, 3)
    rows = [("images", to_rgb(pixels))]
    rows += [(f"layer {i + 1}", colours[:, i]) for i in range(colours.shape[1])]
    return arrange_rows(rows, tile_size(pixels.shape[2], pixels.shape[3]))


def mean_maps(model: VisionTransformer, pixels: Tensor, data: DataSpec) -> np.ndarray:
    """Return the mean map over heads of each image and layer: (B, L, gh, gw)."""
    mean, std = (torch.tensor(row, device=pixels.device) for row in (data.mean, data.std))
    layers = tuple(range(len(model.blocks)))
    dtype = next(model.parameters()).dtype
    count = max(1, MAX_BYTES // weight_bytes(model))
    parts = [layers[i : i + count] for i in range(0, len(layers), count)]
    rows = []
    with evaluating(model):
        for images in pixels.split(max(1, count // len(layers))):
            batch = normalize(images, mean, std).to(dtype)
            requests = [MapRequest(model=model, images=batch, layers=part) for part in parts]
            by_layer = [head_maps(request).mean(2) for request in requests]
            rows.append(torch.cat(by_layer, dim=1))
    array: np.ndarray = torch.cat(rows).nan_to_num(0).float().cpu().numpy()
    return array


def fixed_pictures(task: Task, module: nn.Module, data: DataSet) -> tuple[dict[str, Grid], int]:
    """Return the task's pictures of the first test images of each class, and their number.

    The modes of the module's parts and torch's random state are restored, so a training does not
    depend on its pictures.
    """
    index = fixed_index(data.test)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            return task.pictures(module, data, index), len(index)
    finally:
        for part, mode in modes:
            part.training = mode


def picture_sheet(picture: Grid) -> np.ndarray:
    """Return a picture as pixels (height, width, 3) uint8 with its row names."""
    cells = picture.cells.permute(0, 1, 3, 4, 2).cpu().numpy()
    names = picture.row_names or ("",) * len(cells)
    return arrange_rows(list(zip(names, cells, strict=True)), tile_size(*cells.shape[2:4]))
