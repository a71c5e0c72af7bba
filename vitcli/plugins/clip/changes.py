"""Transformations that a caption can name. Axes: B batch, C channels, H W pixels.

Each takes images with levels from 0 to 1. They draw nothing, so a CUDA graph can contain them.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LOW, HIGH = 0.35, 2.5
"""Factors of the distance to the mean level in ``low_contrast`` and ``high_contrast``."""
SHARE = 0.5
"""Side of a small picture, and of the crop, as a share of the image."""


def blur(images: Tensor) -> Tensor:
    """Average each pixel with its neighbours in a 5x5 box; the border is repeated."""
    return F.avg_pool2d(F.pad(images, (2,) * 4, mode="replicate"), kernel_size=5, stride=1)


def grey(images: Tensor) -> Tensor:
    """Replace the channels by their mean."""
    return images.mean(1, keepdim=True).expand_as(images)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Scale the distance of each level to the image's mean level."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return ((images - mean) * factor + mean).clamp(0, 1)


def small(images: Tensor) -> Tensor:
    """Shrink the image to half its side and surround it with its mean colour."""
    height, width = images.shape[-2:]
    inner = max(1, round(height * SHARE)), max(1, round(width * SHARE))
    shrunk = F.adaptive_avg_pool2d(images, inner)
    out = images.mean((2, 3), keepdim=True).expand_as(images).clone()
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    out[:, :, top : top + inner[0], left : left + inner[1]] = shrunk
    return out


def crop(images: Tensor) -> Tensor:
    """Enlarge the central half of each side to the whole image."""
    height, width = images.shape[-2:]
    inner = max(1, round(height * SHARE)), max(1, round(width * SHARE))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    part = images[:, :, top : top + inner[0], left : left + inner[1]]
    return F.interpolate(part, size=(height, width), mode="bilinear", align_corners=False)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda images: images,
    "blur": blur,
    "grey": grey,
    "low_contrast": lambda images: contrast(images, LOW),
    "high_contrast": lambda images: contrast(images, HIGH),
    "small": small,
    "crop": crop,
}
"""Transformations in the order of ``plugins.clip.captions.CHANGES``."""


def change(images: Tensor, which: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return normalised images (B, C, H, W), each after its transformation.

    ``which`` (B,) are places in ``CHANGES``. All transformations are computed for all images, so
    that the host need not read them. Scale and shift (C, 1, 1) are those of
    :func:`augment.standardize`.
    """
    levels = ((images + shift) / (255 * scale)).clamp(0, 1)
    changed = torch.stack([apply(levels) for apply in CHANGES.values()])
    index = which.view(1, -1, 1, 1, 1).expand(1, *images.shape)
    return changed.gather(0, index)[0] * (255 * scale) - shift
