"""RandAugment and TrivialAugment on whole batches: every image has its own operation and strength.

RandAugment: Cubuk et al. 2019, https://arxiv.org/abs/1909.13719. TrivialAugment: Mueller and
Hutter 2021, https://arxiv.org/abs/2103.10158. Operations, ranges and rounding follow Pillow and
torchvision: images are bytes, and fractions are cut off. As in torchvision's defaults, geometric
operations take the nearest pixel, and pixels from outside the image are black.
Axes: N images of the data set, B batch, C channels, H W pixels, k operations per image.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Size = tuple[int, int]
"""Height and width."""


def nearest_pixels(matrix: Tensor, size: Size) -> tuple[Tensor, Tensor]:
    """Return where an affine map takes each pixel from, and whether this is inside the image.

    (..., 2, 3) -> index in the image (..., H W) int64, (..., H W) bool.

    The pixel with its centre at (x, y) takes its value from the place matrix @ (x, y, 1). x points
    to the right and y down, in pixels from the upper left corner of the image.
    """
    height, width = size
    y = torch.arange(0.5, height, device=matrix.device)[:, None]
    x = torch.arange(0.5, width, device=matrix.device)
    a, b, c = matrix[..., None, None].unbind(-3)  # each (..., 2, 1, 1)
    column, row = (a * x + b * y + c).floor().long().unbind(-3)
    near_row, near_column = row.clamp(0, height - 1), column.clamp(0, width - 1)
    is_inside = (near_row == row) & (near_column == column)
    index = torch.add(near_column, near_row, alpha=width)
    return index.flatten(-2), is_inside.flatten(-2)


def take_pixels(images: Tensor, index: Tensor, is_inside: Tensor) -> Tensor:
    """Gather the pixels that :func:`nearest_pixels` found: (B, C, H, W), 2 x (B, H W)."""
    flat = images.flatten(2)
    taken = flat.gather(2, index[:, None].expand_as(flat))
    return (taken * is_inside[:, None]).view_as(images)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Apply an affine map to images: (B, C, H, W), (B, 2, 3) -> (B, C, H, W)."""
    height, width = images.shape[-2:]
    return take_pixels(images, *nearest_pixels(matrix, (height, width)))


def affine(like: Tensor, *rows: Tensor | float) -> Tensor:
    """Return matrices (B, 2, 3) of six entries, each (B,) as ``like`` or a number."""
    return torch.stack([torch.ones_like(like) * row for row in rows], dim=1).view(-1, 2, 3)


def shear_x(slope: Tensor, _: Size) -> Tensor:
    return affine(slope, 1.0, slope, 0.0, 0.0, 1.0, 0.0)


def shear_y(slope: Tensor, _: Size) -> Tensor:
    return affine(slope, 1.0, 0.0, 0.0, slope, 1.0, 0.0)


def translate_x(pixels: Tensor, _: Size) -> Tensor:
    """Move images to the right by whole pixels."""
    return affine(pixels, 1.0, 0.0, -pixels.trunc(), 0.0, 1.0, 0.0)


def translate_y(pixels: Tensor, _: Size) -> Tensor:
    """Move images down by whole pixels."""
    return affine(pixels, 1.0, 0.0, 0.0, 0.0, 1.0, -pixels.trunc())


def rotate(degrees: Tensor, size: Size) -> Tensor:
    """Rotate images anticlockwise around the centre."""
    y, x = (side / 2 for side in size)
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    return affine(degrees, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


MATRICES: dict[str, Callable[[Tensor, Size], Tensor]] = {
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
}
"""The geometric operations: strength (B,) float32 -> matrices (B, 2, 3) for :func:`warp`."""


def draw_matrices(op: Tensor, strength: Tensor, size: Size) -> Tensor:
    """Return the matrices (N, k, 2, 3) of drawn operations; other operations keep the pixels.

    They are computed on the CPU, once for every device. A rotation by 45 or 135 degrees puts
    pixels on the edge between two others, where one rounding of the angle would change them.
    """
    matrix = torch.eye(2, 3).repeat(*op.shape, 1, 1)
    for name, make in MATRICES.items():
        chosen = op == list(OPS).index(name)
        matrix[chosen] = make(strength[chosen], size)
    return matrix


def move(name: str, images: Tensor, strength: Tensor) -> Tensor:
    """Apply a row of ``MATRICES`` to images."""
    height, width = images.shape[-2:]
    return warp(images, MATRICES[name](strength, (height, width)))


def blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return (1 - factor) other + factor images as bytes; a factor over 1 extrapolates."""
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 255).byte()


def grey(images: Tensor) -> Tensor:
    """Return the luma of ITU-R BT.601 in whole levels: (B, C, H, W) -> (B, 1, H, W) float."""
    if images.shape[1] != 3:
        return images.float().mean(1, keepdim=True).floor()
    red, green, blue = images.split(1, dim=1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).floor()


def smooth(images: Tensor) -> Tensor:
    """Return images in whole levels, float, smoothed by 3 x 3 except for their borders."""
    smoothed = images.float()
    if min(images.shape[-2:]) > 2:
        inner = smoothed[:, :, 1:-1, 1:-1]
        total = F.avg_pool2d(smoothed, 3, stride=1, divisor_override=1)
        inner.copy_(total.add_(inner, alpha=4).div_(13).round_())
    return smoothed


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return blend(torch.zeros_like(images), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with grey levels. Images of one channel stay as they are, as in torchvision."""
    return images if images.shape[1] == 1 else blend(grey(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    # A sum of whole levels is exact, so the mean does not depend on the order of summation.
    total = grey(images).int().sum(dim=(1, 2, 3), keepdim=True)
    return blend(total / images[0, :1].numel(), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    return blend(smooth(images), images, factor)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the upper ``bits`` bits of each byte; ``bits`` is rounded."""
    step = 2 ** (8 - bits.round().int())[:, None, None, None]
    return (images - images % step).byte()


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels at and above the threshold."""
    return torch.where(images >= threshold[:, None, None, None], 255 - images, images)


def auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255; a channel with only one level does not change."""
    low, high = (x[..., None, None].int() for x in images.flatten(2).aminmax(dim=2))
    stretched = (images - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, images).byte()


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten the histogram of each channel, as Pillow does.

    The new level of a pixel is (n + step // 2) // step, where n pixels of the channel are darker.
    step is the number of pixels below the brightest level, divided by 255 and rounded down. If step
    is 0, the channel does not change.
    """
    flat = images.flatten(2)  # (B, C, H W)
    ranked = flat.sort(dim=2).values
    below = torch.searchsorted(ranked, flat)
    step = torch.searchsorted(ranked, ranked[..., -1:].contiguous()) // 255
    level = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, level, flat).byte().view_as(images)


def identity(images: Tensor, _: Tensor) -> Tensor:
    return images


class Op(NamedTuple):
    """An operation, the neutral strength that changes nothing, and the range around it."""

    apply: Callable[[Tensor, Tensor], Tensor]
    """(B, C, H, W) uint8, strength (B,) float32 -> (B, C, H, W) uint8."""
    neutral: float = 0.0
    rand: float = 0.0
    """Distance from the neutral strength at RandAugment's magnitude 30."""
    wide: float = 0.0
    """The largest distance from the neutral strength in TrivialAugment's wide space."""
    is_signed: bool = True
    """Whether the strength may be above or below the neutral strength."""


# The largest translation is 150 / 331 of the side in RandAugment and 32 pixels in TrivialAugment.
OPS: dict[str, Op] = {
    "identity": Op(identity),
    "shear_x": Op(partial(move, "shear_x"), 0, 0.3, 0.99),
    "shear_y": Op(partial(move, "shear_y"), 0, 0.3, 0.99),
    "translate_x": Op(partial(move, "translate_x"), 0, 150 / 331, 32),
    "translate_y": Op(partial(move, "translate_y"), 0, 150 / 331, 32),
    "rotate": Op(partial(move, "rotate"), 0, 30, 135),
    "brightness": Op(brightness, 1, 0.9, 0.99),
    "color": Op(color, 1, 0.9, 0.99),
    "contrast": Op(contrast, 1, 0.9, 0.99),
    "sharpness": Op(sharpness, 1, 0.9, 0.99),
    "posterize": Op(posterize, 8, -4, -6, is_signed=False),
    "solarize": Op(solarize, 255, -255, -255, is_signed=False),
    "auto_contrast": Op(auto_contrast),
    "equalize": Op(equalize),
}


def draw_rand_augment(
    num_images: int, size: tuple[int, int], num_ops: int, magnitude: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Choose k random operations for each image, and return them with their strengths.

    The operations are indices into ``OPS``, (N, k) int64; the strengths are (N, k) float32.

    Operations are drawn with replacement. All have the same ``magnitude``, 0 .. 30. The sign
    is random for operations with ``is_signed``.
    """
    height, width = size
    sides = {"translate_x": width, "translate_y": height}
    change = torch.tensor([op.rand * sides.get(name, 1) for name, op in OPS.items()])
    level = torch.full((num_images, num_ops), magnitude / 30)
    return _draw(change, level, generator)


def draw_trivial_augment(num_images: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw one operation for each image, with a uniform magnitude in 0 .. 30.

    The result has the form of :func:`draw_rand_augment`, with k = 1.
    """
    level = torch.randint(31, (num_images, 1), generator=generator) / 30
    return _draw(torch.tensor([float(op.wide) for op in OPS.values()]), level, generator)


def _draw(change: Tensor, level: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    op = torch.randint(len(OPS), level.shape, generator=generator)
    sign = torch.randint(2, level.shape, generator=generator) * 2 - 1
    is_signed = torch.tensor([row.is_signed for row in OPS.values()])[op]
    neutral = torch.tensor([float(row.neutral) for row in OPS.values()])[op]
    return op, neutral + change[op] * level * torch.where(is_signed, sign, 1)


def apply_policy(images: Tensor, op: Tensor, strength: Tensor, matrix: Tensor) -> Tensor:
    """Apply the k operations of each image one after the other.

    (B, C, H, W) uint8, (B, k) int64 on the CPU, (B, k) float32 and (B, k, 2, 3) float32 on the
    device -> (B, C, H, W). The batch is sorted by operation, and each operation runs once on its
    group of images. ``op`` is on the CPU because the host needs the group sizes and must not wait
    for the device.
    """
    for rows, *settings in zip(op.unbind(1), strength.unbind(1), matrix.unbind(1), strict=True):
        groups = rows.bincount(minlength=len(OPS)).tolist()
        index = rows.argsort(stable=True).to(images.device, non_blocking=True)
        parts = (table[index].split(groups) for table in (images, *settings))
        changed = [
            warp(part, place) if name in MATRICES else OPS[name].apply(part, value)
            for name, part, value, place in zip(OPS, *parts, strict=True)
            if len(part)
        ]
        images = torch.empty_like(images).index_copy_(0, index, torch.cat(changed))
    return images
