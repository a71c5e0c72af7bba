"""Pictures of a model's attention during training, on the same few test images each time.

Axes: B images, C channels, H W pixels, gh gw patch grid, L layers, h heads.
"""

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from vitcli.core.data.augment import normalize
from vitcli.core.data.source import Images
from vitcli.core.inspect.maps import MapRequest, head_maps
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import rank_in_class
from vitcli.runner.data.contact_sheet import GAP, GROUND, INK, font
from vitcli.runner.figure_style import CMAP

COUNT = 8
MAX_BYTES = 2**28
"""Largest size of the attention weights of one image and layer. Above it, a training draws no
pictures."""
TILE = 64
MARGIN = 88
"""Smallest width of the row names in pixels."""
LABEL_SIZE = 20
"""Size of the row names in pixels. TensorBoard shows the strip at about half its width."""


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
    if 4 * model.spec.num_heads * model.token_shape.num_tokens**2 > MAX_BYTES:
        return None
    return attention_strip(model, fixed_images(images), data)


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

    The model runs in eval mode, for one image and layer at a time to save memory.
    """
    mean, std = (torch.tensor(row, device=pixels.device) for row in (data.mean, data.std))
    layers = tuple(range(len(model.blocks)))
    dtype = next(model.parameters()).dtype
    was_training = model.training
    model.eval()
    try:
        rows = []
        for image in pixels:
            batch = normalize(image[None], mean, std).to(dtype)
            requests = [MapRequest(model=model, images=batch, layers=(layer,)) for layer in layers]
            by_layer = [head_maps(request).mean(2) for request in requests]
            rows.append(torch.cat(by_layer, dim=1))
        maps = torch.cat(rows)
    finally:
        model.train(was_training)
    array: np.ndarray = maps.nan_to_num(0).float().cpu().numpy()
    return array


def to_rgb(pixels: Tensor) -> np.ndarray:
    """Convert pixels for display: (B, C, H, W) uint8 -> (B, H, W, 3).

    If C is not 3, the mean over the channels is shown in grey.
    """
    if pixels.shape[1] != 3:
        pixels = pixels.float().mean(1, keepdim=True).round().byte().expand(-1, 3, -1, -1)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def tile_size(height: int, width: int) -> tuple[int, int]:
    """Return an image's (width, height) in the strip; small images grow by a whole factor."""
    longest = max(height, width)
    scale = TILE // longest if longest <= TILE else TILE / longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def arrange_rows(rows: list[tuple[str, np.ndarray]], size: tuple[int, int]) -> np.ndarray:
    """Draw named rows of pictures (B, any height, any width, 3) uint8, each resized to ``size``."""
    (width, height), count = size, len(rows[0][1])
    longest = max(font(LABEL_SIZE).getlength(name) for name, _ in rows)
    margin = max(MARGIN, round(longest) + 2 * GAP)
    shape = (margin + count * (width + GAP), GAP + len(rows) * (height + GAP))
    sheet = Image.new("RGB", shape, GROUND)
    draw = ImageDraw.Draw(sheet)
    for i, (name, pictures) in enumerate(rows):
        y = GAP + i * (height + GAP)
        draw.text((GAP, y + height / 2), name, fill=INK, font=font(LABEL_SIZE), anchor="lm")
        for j, pixels in enumerate(pictures):
            shrinks = pixels.shape[0] > height or pixels.shape[1] > width
            method = Image.Resampling.LANCZOS if shrinks else Image.Resampling.NEAREST
            picture = Image.fromarray(np.ascontiguousarray(pixels)).resize(size, method)
            sheet.paste(picture, (margin + j * (width + GAP), y))
    return np.asarray(sheet)
