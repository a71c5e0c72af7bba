"""Faithfulness of a map: how the model's answer changes when the map's highest patches are removed.

Axes: B batch, C channels, H W pixels, K classes, gh gw patch grid, P = gh gw patches, S points.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vitcli.core.models.image_model import ImageModel


def ranks(maps: Tensor) -> Tensor:
    """Return the ranks of patches, 0 the highest, ties in reading order: (B, gh, gw) -> (B, P)."""
    return maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)


@torch.no_grad()
def probability_curve(
    model: ImageModel,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    counts: list[int],
    *,
    inserts: bool,
) -> Tensor:
    """Return the probability of a class while the highest patches are removed or inserted: (B, S).

    (B, C, H, W) normalised, (B, gh, gw), (B,). ``counts`` has the number of patches at each point.
    Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421. The paper removes pixels; this function
    removes patches. A removed patch becomes 0, which is the mean colour of normalised images. An
    insertion starts from an image of this colour; the paper starts from a blurred image.
    """
    rank = ranks(maps).view_as(maps)  # (B, gh, gw)
    probabilities = []
    for count in counts:
        kept = (rank < count) if inserts else (rank >= count)
        logits = model(images * enlarge(kept.to(images.dtype), images))
        probabilities.append(logits.float().softmax(-1).gather(1, classes[:, None])[:, 0])
    return torch.stack(probabilities, dim=1)


def enlarge(values: Tensor, images: Tensor) -> Tensor:
    """Repeat the value of each patch for its pixels: (B, gh, gw), (B, C, H, W) -> (B, 1, H, W)."""
    return F.interpolate(values[:, None], size=images.shape[-2:], mode="nearest")


def area(curves: Tensor, counts: list[int]) -> Tensor:
    """Return the area under curves over the share of patches, between 0 and 1: (B, S) -> (B,)."""
    shares = torch.tensor(counts, dtype=curves.dtype, device=curves.device) / counts[-1]
    return torch.trapezoid(curves, shares, dim=1)


def random_maps(count: int, grid_size: tuple[int, int], seed: int) -> Tensor:
    """Return random maps as a baseline: (count, gh, gw), each value uniform in [0, 1)."""
    return torch.rand(count, *grid_size, generator=Generator().manual_seed(seed))


def centre_map(grid_size: tuple[int, int]) -> Tensor:
    """Return a Gaussian centred on the grid: (gh, gw).

    Its standard deviation is a quarter of each side. The map is a baseline that ignores the picture
    and uses only that photographers centre their subject. A map that beats this baseline depends on
    the picture.
    """
    height, width = grid_size
    y = (torch.arange(height) - (height - 1) / 2) / (height / 4)
    x = (torch.arange(width) - (width - 1) / 2) / (width / 4)
    return torch.exp(-(y[:, None] ** 2 + x**2) / 2)


def removal_counts(num_patches: int, points: int = 17) -> list[int]:
    """Return up to ``points`` evenly spaced numbers of patches, from 0 to all patches."""
    last = min(points - 1, num_patches)
    return [math.floor(num_patches * i / last + 0.5) for i in range(last + 1)]
