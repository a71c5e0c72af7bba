"""Statistics of attention weights. Axes: B batch, h num_heads, N tokens, P = gh gw patches.

Every function takes weights (B, h, N, N) with the prefix (CLS, registers) first. Statistics of
distance count only patches as queries, because the prefix has no position.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-12
"""The smallest divisor; it avoids a division by zero."""


def patch_distances(grid_size: tuple[int, int], patch_size: int) -> Tensor:
    """Return the distances in pixels between patch centres, in reading order: (P, P)."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in grid_size), indexing="ij")
    centres = torch.stack([rows.flatten(), columns.flatten()], dim=1).double() * patch_size
    return torch.cdist(centres, centres)


def attention_distance(weights: Tensor, grid_size: tuple[int, int], patch_size: int) -> Tensor:
    """Return the mean distance in pixels from a patch to the patches that it attends to: (B, h).

    Attention to the prefix has no distance, so the weights of the patches are scaled to sum to 1.
    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, figure 7.
    """
    shares = patch_weights(weights, grid_size)
    distances = patch_distances(grid_size, patch_size).to(shares)
    return (shares * distances).sum(-1).mean(-1)


def uniform_distance(grid_size: tuple[int, int], patch_size: int) -> float:
    """Return the ``attention_distance`` of a model whose patches attend equally to all patches."""
    return patch_distances(grid_size, patch_size).mean().item()


def near_share(weights: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return the share of a patch's attention to itself and its up to eight neighbours: (B, h).

    Attention to the prefix does not count. The share is averaged over patches.
    """
    shares = patch_weights(weights, grid_size)
    return (shares * neighbours(grid_size).to(shares)).sum(-1).mean(-1)


def uniform_near_share(grid_size: tuple[int, int]) -> float:
    """Return the ``near_share`` of a model whose patches attend equally to all patches."""
    return neighbours(grid_size).double().mean().item()


def neighbours(grid_size: tuple[int, int]) -> Tensor:
    """Return whether two patches are the same or touch, at least at a corner: (P, P) bool."""
    return patch_distances(grid_size, 1) < 1.5


def head_similarity(weights: Tensor) -> Tensor:
    """Return the mean cosine between the maps of two different heads: (); NaN for one head."""
    maps = F.normalize(weights.flatten(2), dim=-1)  # (B, h, N * N)
    cosines = (maps @ maps.mT).mean(0)  # (h, h)
    count = len(cosines)
    return (cosines.sum() - cosines.trace()) / (count * (count - 1))


def patch_weights(weights: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return the weights between patches, rows scaled to sum to 1: (B, h, N, N) -> (B, h, P, P).

    A row without any attention to patches stays 0.
    """
    first = weights.shape[-1] - grid_size[0] * grid_size[1]
    patches = weights[..., first:, first:]
    return patches / patches.sum(-1, keepdim=True).clamp(min=TINY)
