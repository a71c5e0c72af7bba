"""Batched augmentation on any device; the random parameters of each operation are tensors.

The ``draw_*`` functions draw the parameters on the CPU, one row for each image of the data set. The
other functions apply the rows of one batch. They draw nothing and never make the host wait for the
device. A box is (top, left, bottom, right) in pixels, half open.
Axes: N images of the data set, B batch, C channels, H W pixels, K classes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Box = Tensor
"""(B, 4) int64: top, left, bottom, right. Row bottom and column right lie outside the box. The box
is empty if top == bottom."""

ERASING_AREA = (0.02, 0.33)
ERASING_RATIO = (0.3, 3.3)


def crop(images: Tensor, offset: Tensor, padding: int) -> Tensor:
    """Pad each side by ``padding`` zero pixels and crop a window of (H, W) at ``offset``.

    (B, C, H, W), (B, 2) top and left in 0 .. 2 * padding -> (B, C, H, W), any type.
    """
    height, width = images.shape[-2:]
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    batch = torch.arange(len(images), device=images.device)
    return windows[batch, :, offset[:, 0], offset[:, 1]]


def draw_crop(num_images: int, padding: int, generator: Generator) -> Tensor:
    """Draw uniform offsets (N, 2) for :func:`crop`."""
    return torch.randint(0, 2 * padding + 1, (num_images, 2), generator=generator)


def flip(images: Tensor, coin: Tensor) -> Tensor:
    """Mirror left and right if ``coin`` is true: (B, C, H, W), (B,) bool -> (B, C, H, W)."""
    return torch.where(coin[:, None, None, None], images.flip(-1), images)


def draw_flip(num_images: int, generator: Generator) -> Tensor:
    """Draw a fair coin for each image: (N,) bool.

    For the alternating flip of airbench (Jordan 2024, https://arxiv.org/abs/2404.00498) the
    caller draws with the generator of epoch 0 and negates the coin in every odd epoch. Two
    consecutive epochs then show both sides of every image.
    """
    return torch.rand(num_images, generator=generator) < 0.5


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (images / 255 - mean) / std: (B, C, H, W) uint8 or float, 2 x (C,) -> float32."""
    return standardize(images, *scale_and_shift(mean, std))


def scale_and_shift(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`standardize` multiplies pixels by and subtracts: each (C, 1, 1)."""
    return (1 / (255 * std))[:, None, None], (mean / std)[:, None, None]


def standardize(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return images * scale - shift: (B, C, H, W) uint8 or float -> float32."""
    return images.float().mul(scale).sub_(shift)


def inside(box: Box, height: int, width: int) -> Tensor:
    """Return which pixels lie in the box: (B, 4) -> (B, 1, H, W) bool."""
    first, last = box.unflatten(1, (2, 2))[..., None].unbind(1)  # (B, 2, 1) each: row, column
    place = torch.arange(max(height, width), device=box.device)
    rows, columns = ((first <= place) & (place < last)).unbind(1)
    return (rows[:, :height, None] & columns[:, None, :width])[:, None]


def erase(images: Tensor, box: Box) -> Tensor:
    """Set the pixels in the box to zero, which is the mean colour of normalised images.

    Random erasing, Zhong et al. 2017, https://arxiv.org/abs/1708.04896. The paper found noise
    slightly better than the mean. This function uses the mean, which needs no random draw in the
    step.
    """
    return images.masked_fill(inside(box, *images.shape[-2:]), 0)


def draw_erase(num_images: int, size: tuple[int, int], prob: float, generator: Generator) -> Box:
    """Draw boxes (N, 4) for :func:`erase`, empty with probability 1 - ``prob``.

    As in the paper, a box has 2 to 33 % of the area, and height / width is in 0.3 .. 3.3. There are
    two deviations. The ratio is log-uniform, so tall and wide boxes are equally likely; the paper
    draws a uniform ratio. A box that is larger than the image is clipped; the paper draws again.
    """
    height, width = size
    u = torch.rand(num_images, 5, generator=generator, dtype=torch.float64)
    area = (ERASING_AREA[0] + (ERASING_AREA[1] - ERASING_AREA[0]) * u[:, 0]) * height * width
    low, high = (math.log(ratio) for ratio in ERASING_RATIO)
    ratio = (low + (high - low) * u[:, 1]).exp()
    h = (area * ratio).sqrt().round().clamp(max=height)
    w = (area / ratio).sqrt().round().clamp(max=width)
    top, left = (u[:, 2] * (height - h + 1)).floor(), (u[:, 3] * (width - w + 1)).floor()
    box = torch.stack([top, left, top + h, left + w], dim=1).long()
    return box * (u[:, 4] < prob)[:, None]


def mix(
    images: Tensor, labels: Tensor, lam: Tensor, box: Box, own: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Blend each image and its label with those of its neighbour in the batch.

    The weight of an image is ``lam`` outside the box and 0 inside. The weight of the image's label
    is ``own``, which is the :func:`own_share` of the image.
    (B, C, H, W) float, (B,) int64, (B,) float, (B, 4), (B,) float -> (B, C, H, W) and (B, K)
    probabilities.

    MixUp (Zhang et al. 2017, https://arxiv.org/abs/1710.09412) has an empty box; CutMix (Yun et
    al. 2019, https://arxiv.org/abs/1905.04899) has lam = 1. There are two deviations. Every image
    has its own lam and box; both papers draw one lam and one box for the whole batch. An image is
    mixed with its neighbour, because the order of the images is already random; both papers choose
    a random partner.
    """
    weight = lam[:, None, None, None] * ~inside(box, *images.shape[-2:])  # (B, 1, H, W)
    mixed = images.roll(1, 0).lerp(images, weight.expand_as(images))
    classes = torch.arange(num_classes, device=labels.device)
    targets = (labels[:, None] == classes).to(images.dtype)
    return mixed, targets.roll(1, 0).lerp(targets, own[:, None].expand_as(targets))


def own_share(lam: Tensor, box: Box, size: tuple[int, int]) -> Tensor:
    """Return each image's exact share of the mixed image: lam (1 - box area / H W), (N,)."""
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return lam * (1 - area / (size[0] * size[1]))


def draw_mix(
    num_images: int,
    size: tuple[int, int],
    *,
    mixup: float,
    cutmix: float,
    prob: float,
    switch_prob: float,
    generator: Generator,
) -> tuple[Tensor, Box]:
    """Draw lam (N,) float32 and boxes (N, 4) for :func:`mix`.

    An image is mixed with probability ``prob``. If both alphas are positive, a mixed image uses
    CutMix with probability ``switch_prob`` and MixUp otherwise. The image's own share is drawn from
    Beta(alpha, alpha).
    """
    mixed, switch = torch.rand(2, num_images, generator=generator)
    is_cut = switch < (switch_prob if mixup > 0 and cutmix > 0 else float(cutmix > 0))
    alpha = torch.where(is_cut, cutmix, mixup).double()
    # torch.distributions.Beta accepts no generator; the Dirichlet function that it calls does.
    share = torch._sample_dirichlet(torch.stack([alpha, alpha], 1), generator=generator)[:, 0]
    is_mixed = mixed < prob
    lam = torch.where(is_mixed & ~is_cut, share, 1.0).float()
    centre = torch.stack(
        [torch.randint(0, side, (num_images,), generator=generator) for side in size], dim=1
    )
    return lam, cut_box(share, centre, size) * (is_mixed & is_cut)[:, None]


def cut_box(share: Tensor, centre: Tensor, size: tuple[int, int]) -> Box:
    """Return CutMix's box of area (1 - share) H W around a centre, clipped at the border.

    (N,), (N, 2) int64 -> (N, 4). The sides of an unclipped box are even numbers.
    """
    sides = torch.tensor(size)
    half = ((1 - share).sqrt()[:, None] * sides).long() // 2
    corners = [(centre - half).clamp(min=0), torch.minimum(centre + half, sides)]
    return torch.cat(corners, dim=1)
