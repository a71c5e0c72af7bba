"""Selections of patches. Axes: B batch, N patches, n visible patches, m masked patches, F features.

``visible`` (B, n) and ``masked`` (B, m) are indices of patches in reading order, int64.
"""

from torch import Tensor

from vitcli.core.nn.pos_embed import grid_positions


def split_patches(noise: Tensor, num_masked: int) -> tuple[Tensor, Tensor]:
    """Return the visible and the masked patches of each image: those with less and more noise.

    ``noise`` (B, N) is uniform, so every selection is equally likely. He et al. 2022,
    https://arxiv.org/abs/2111.06377. Equal noise is resolved in reading order, so a selection does
    not depend on the device.
    """
    order = noise.argsort(dim=1, stable=True)
    count = noise.shape[1] - num_masked
    return order[:, :count], order[:, count:]


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Return the tokens at some indices: (B, N, F), (B, n) -> (B, n, F)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def put(tokens: Tensor, index: Tensor, into: Tensor) -> Tensor:
    """Return ``into`` (B, N, F) with ``tokens`` (B, n, F) at the indices (B, n)."""
    return into.scatter(1, index[..., None].expand_as(tokens), tokens.to(into.dtype))


def nearest_visible(visible: Tensor, masked: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return for each masked patch the nearest visible patch, as an index of patches (B, m).

    The distance is Euclidean. Of equally near patches, the first in reading order is taken.
    """
    rows, columns = (place.to(visible.device) for place in grid_positions(grid_size))
    count = len(rows)
    down, right = (place[:, None] - place[None] for place in (rows, columns))
    squared = down * down + right * right  # (N, N)
    found = squared[masked].gather(2, visible[:, None].expand(-1, masked.shape[1], -1))
    first = (found * count + visible[:, None]).argmin(2)  # (B, m), places in ``visible``
    return visible.gather(1, first)
