"""Does a map name the patches that the answer rests on? Take them away and see.

Axes: B batch, C channels, H W pixels, K classes, gh gw patch grid, P = gh gw patches, S shares.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vitcli.core.models.image_model import ImageModel


def ranks(maps: Tensor) -> Tensor:
    """The place of each patch in its map, 0 for the highest: (B, gh, gw) -> (B, P).

    Patches that are alike keep reading order.
    """
    return maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)


@torch.no_grad()
def deletion(
    model: ImageModel, images: Tensor, maps: Tensor, classes: Tensor, counts: list[int]
) -> Tensor:
    """Probability of a class while the highest patches are taken away: (B, S).

    Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421, which takes pixels; here it is the
    patches of the map, and what is taken away becomes 0, the mean colour of normalised images.

    Args:
        images: (B, C, H, W), normalised.
        maps: (B, gh, gw); gh divides H and gw divides W.
        classes: (B,) the class whose probability is followed.
        counts: How many patches are away at each of the S points.
    """
    return _follow(model, images, maps, classes, [(count, False) for count in counts])


@torch.no_grad()
def insertion(
    model: ImageModel, images: Tensor, maps: Tensor, classes: Tensor, counts: list[int]
) -> Tensor:
    """Probability of a class while the highest patches are put back: (B, S).

    As ``deletion``, from an image of the mean colour on; the paper starts from a blurred image.
    """
    return _follow(model, images, maps, classes, [(count, True) for count in counts])


def _follow(
    model: ImageModel,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    points: list[tuple[int, bool]],
) -> Tensor:
    place = ranks(maps).view_as(maps)  # (B, gh, gw)
    shares = []
    for count, is_kept in points:
        kept = (place < count) if is_kept else (place >= count)
        logits = model(images * enlarged(kept.to(images.dtype), images))
        shares.append(logits.float().softmax(-1).gather(1, classes[:, None])[:, 0])
    return torch.stack(shares, dim=1)


def enlarged(kept: Tensor, images: Tensor) -> Tensor:
    """A number a patch -> a number a pixel: (B, gh, gw), (B, C, H, W) -> (B, 1, H, W)."""
    return F.interpolate(kept[:, None], size=images.shape[-2:], mode="nearest")


def area(curves: Tensor, counts: list[int]) -> Tensor:
    """Area under curves over the share of patches, between 0 and 1: (B, S) -> (B,)."""
    shares = torch.tensor(counts, dtype=curves.dtype, device=curves.device) / counts[-1]
    return torch.trapezoid(curves, shares, dim=1)


def random_maps(count: int, grid_size: tuple[int, int], seed: int) -> Tensor:
    """Maps that know nothing, uniform in [0, 1): (count, gh, gw)."""
    return torch.rand(count, *grid_size, generator=Generator().manual_seed(seed))


def centre_map(grid_size: tuple[int, int]) -> Tensor:
    """A Gaussian in the middle, a quarter of each side wide: (gh, gw).

    Photographers centre their subject, so a map that beats this one has seen the picture.
    """
    height, width = grid_size
    y = (torch.arange(height) - (height - 1) / 2) / (height / 4)
    x = (torch.arange(width) - (width - 1) / 2) / (width / 4)
    return torch.exp(-(y[:, None] ** 2 + x**2) / 2)


def removal_counts(num_patches: int, points: int = 17) -> list[int]:
    """So many points, evenly over 0 to all patches; fewer where there are fewer patches."""
    last = min(points - 1, num_patches)
    return [math.floor(num_patches * i / last + 0.5) for i in range(last + 1)]
