"""Numbers about attention weights. Axes: B batch, h num_heads, N tokens, P = gh gw patches.

All take weights (B, h, N, N) with the prefix (CLS, registers) first. Where places matter, queries
that are no patches are left out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-12
"""What is divided by at least."""


def patch_distances(grid_size: tuple[int, int], patch_size: int) -> Tensor:
    """Pixels between the centres of any two patches, row by row: (P, P)."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid_size), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1).double() * patch_size
    return torch.cdist(places, places)


def attention_distance(weights: Tensor, grid_size: tuple[int, int], patch_size: int) -> Tensor:
    """Mean distance in pixels between a patch and the patches that it attends to: (B, h).

    What goes to the prefix has no distance: the weights of the patches are scaled to sum to 1.
    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, figure 7.
    """
    shares = patch_weights(weights, grid_size)
    distances = patch_distances(grid_size, patch_size).to(shares)
    return (shares * distances).sum(-1).mean(-1)


def uniform_distance(grid_size: tuple[int, int], patch_size: int) -> float:
    """What ``attention_distance`` is where every patch attends to all patches alike."""
    return patch_distances(grid_size, patch_size).mean().item()


def near_share(weights: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Share of a patch's attention that stays with it and its up to eight neighbours: (B, h).

    Of what goes to patches, averaged over patches.
    """
    shares = patch_weights(weights, grid_size)
    return (shares * neighbours(grid_size).to(shares)).sum(-1).mean(-1)


def uniform_near_share(grid_size: tuple[int, int]) -> float:
    """What ``near_share`` is where every patch attends to all patches alike."""
    return neighbours(grid_size).double().mean().item()


def neighbours(grid_size: tuple[int, int]) -> Tensor:
    """Whether two patches touch, at a corner at least, or are the same: (P, P) bool."""
    return patch_distances(grid_size, 1) < 1.5


def attention_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of the rows in nats, (B, h): 0 for one token, ln N for all alike."""
    return -torch.xlogy(weights, weights).sum(-1).mean(-1)


def head_similarity(weights: Tensor) -> Tensor:
    """Cosine of the maps of any two heads of a layer, averaged over the batch: (h, h)."""
    maps = F.normalize(weights.flatten(2), dim=-1)  # (B, h, N * N)
    return (maps @ maps.mT).mean(0)


def patch_weights(weights: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Patches to patches, rows scaled to sum to 1: (B, h, N, N) -> (B, h, P, P).

    A row that gives nothing at all to patches stays empty.
    """
    first = weights.shape[-1] - grid_size[0] * grid_size[1]
    patches = weights[..., first:, first:]
    return patches / patches.sum(-1, keepdim=True).clamp(min=TINY)
