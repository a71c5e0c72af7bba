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
Change = Callable[[Tensor], Tensor]


def blur(images: Tensor) -> Tensor:
    """Average each pixel with its neighbours in a 5x5 box; the border is repeated."""
    return F.avg_pool2d(F.pad(images, (2,) * 4, mode="replicate"), kernel_size=5, stride=1)


def grey(images: Tensor) -> Tensor:
    return images.mean(1, keepdim=True).expand_as(images)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Scale the distance of each level to the image's mean level."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return ((images - mean) * factor + mean).clamp(0, 1)


def middle(images: Tensor) -> Tensor:
    """Return the central half of each side, as a view."""
    for dim in (2, 3):
        length = images.shape[dim]
        inner = max(1, round(length * SHARE))
        images = images.narrow(dim, (length - inner) // 2, inner)
    return images


def small(images: Tensor) -> Tensor:
    """Shrink the image to half its side and surround it with its mean colour."""
    out = images.mean((2, 3), keepdim=True).expand_as(images).clone()
    part = middle(out)
    part.copy_(F.adaptive_avg_pool2d(images, (part.shape[2], part.shape[3])))
    return out


def crop(images: Tensor) -> Tensor:
    """Enlarge the central half of each side to the whole image."""
    size = images.shape[2:]
    return F.interpolate(middle(images), size=size, mode="bilinear", align_corners=False)


CHANGES: dict[str, tuple[str, Change]] = {
    "none": ("plain", lambda images: images),
    "blur": ("blurred", blur),
    "grey": ("grey", grey),
    "low_contrast": ("pale", lambda images: contrast(images, LOW)),
    "high_contrast": ("vivid", lambda images: contrast(images, HIGH)),
    "small": ("small", small),
    "crop": ("cropped", crop),
}
"""Name of a transformation -> its word in captions, and itself."""


def change(images: Tensor, which: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return normalised images (B, C, H, W), each after its transformation.

    ``which`` (B,) are places in ``CHANGES``. All transformations are computed for all images, so
    that the host need not read them. Scale and shift (C, 1, 1) are those of
    :func:`augment.standardize`.
    """
    levels = ((images + shift) / (255 * scale)).clamp(0, 1)
    changed = torch.stack([apply(levels) for _, apply in CHANGES.values()])
    index = which.view(1, -1, 1, 1, 1).expand(1, *images.shape)
    return changed.gather(0, index)[0] * (255 * scale) - shift
