"""Pictures of a model's attention during training, on the same few test images each time.

Axes: B images, C channels, H W pixels, gh gw patch grid, L layers, h heads.
"""

import matplotlib
import numpy as np
import torch
from torch import Tensor

from vitcli.core.data.augment import normalize
from vitcli.core.data.source import Images
from vitcli.core.inspect.maps import MapRequest, head_maps
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import rank_in_class
from vitcli.runner.data.contact_sheet import arrange_rows, tile_size, to_rgb
from vitcli.runner.figure_style import CMAP

COUNT = 8
MAX_BYTES = 2**28
"""Largest size of the attention weights that are computed at once. A training draws no pictures if
one image and layer need more."""


def fixed_index(images: Images) -> Tensor:
    """Return the first image of each class, then the second, up to ``COUNT``: (B,) int64."""
    labels = images.labels.cpu()
    turns = rank_in_class(labels) * (labels.max() + 1) + labels
    return turns.argsort()[:COUNT].to(images.pixels.device)


def fixed_images(images: Images) -> Tensor:
    """Return the pixels of the images at ``fixed_index``, (B, C, H, W)."""
    return images.pixels[fixed_index(images)]


def draw_training_strip(model: ImageModel, images: Images, data: DataSpec) -> np.ndarray | None:
    """Return the strip of a model in training; None for a model without attention maps.

    A model whose attention would take more than ``MAX_BYTES`` gets no strip either.
    """
    if not isinstance(model, VisionTransformer) or not model.has_attention_weights:
        return None
    if weight_bytes(model) > MAX_BYTES:
        return None
    return attention_strip(model, fixed_images(images), data)


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
    """Return the mean map over heads of each image and layer: (B, L, gh, gw).

    The model runs in eval mode, on parts of the images and layers if there are too many for
    ``MAX_BYTES``.
    """
    mean, std = (torch.tensor(row, device=pixels.device) for row in (data.mean, data.std))
    layers = tuple(range(len(model.blocks)))
    dtype = next(model.parameters()).dtype
    count = max(1, MAX_BYTES // weight_bytes(model))
    parts = [layers[i : i + count] for i in range(0, len(layers), count)]
    was_training = model.training
    model.eval()
    try:
        rows = []
        for images in pixels.split(max(1, count // len(layers))):
            batch = normalize(images, mean, std).to(dtype)
            requests = [MapRequest(model=model, images=batch, layers=part) for part in parts]
            by_layer = [head_maps(request).mean(2) for request in requests]
            rows.append(torch.cat(by_layer, dim=1))
        maps = torch.cat(rows)
    finally:
        model.train(was_training)
    array: np.ndarray = maps.nan_to_num(0).float().cpu().numpy()
    return array
