"""Attention inside shifted windows, and patch merging between stages.

Liu et al. 2021, https://arxiv.org/abs/2103.14030. Axes: B batch, N = H W tokens of a grid in
reading order, D embed_dim, W windows of n tokens, h num_heads, d = D / h.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention import Position, SelfAttention, TokenShape
from vitcli.core.nn.pos_embed import RelativeBias
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import Draws

Pair = tuple[int, int]


class Windows:
    """Partition of a grid into windows, after padding to whole windows and a cyclic shift."""

    def __init__(self, grid_size: Pair, window_size: int, *, shifted: bool) -> None:
        """Limit the window to the grid. An axis with a single window is not shifted."""
        height, width = grid_size
        self.grid_size = grid_size
        self.size = min(window_size, height), min(window_size, width)
        self.counts = -(-height // self.size[0]), -(-width // self.size[1])
        self.padded = self.counts[0] * self.size[0], self.counts[1] * self.size[1]
        self.shift = (
            self.size[0] // 2 if shifted and self.counts[0] > 1 else 0,
            self.size[1] // 2 if shifted and self.counts[1] > 1 else 0,
        )

    def cut(self, grid: Tensor) -> Tensor:
        """Return the windows of a padded grid, shifted: (B, H, W, C) -> (B, windows, n, C)."""
        if any(self.shift):
            grid = grid.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        return self.tile(grid)

    def tile(self, grid: Tensor) -> Tensor:
        """Return the windows of a padded grid, not shifted: (B, H, W, C) -> (B, windows, n, C)."""
        (rows, columns), (height, width) = self.counts, self.size
        parts = grid.unflatten(2, (columns, width)).unflatten(1, (rows, height))
        return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def join(self, windows: Tensor) -> Tensor:
        """Return the padded grid of windows from ``cut``: (B, windows, n, C) -> (B, H, W, C)."""
        parts = windows.unflatten(1, self.counts).unflatten(3, self.size).transpose(2, 3)
        grid = parts.flatten(3, 4).flatten(1, 2)
        return grid.roll(self.shift, dims=(1, 2)) if any(self.shift) else grid

    def border_mask(self) -> Tensor | None:
        """Return a mask (windows, n, n), True between tokens that must not attend to each other.

        The cyclic shift puts tokens of opposite edges of the picture into the same window. Returns
        None if there is no shift.
        """
        if not any(self.shift):
            return None
        regions = []
        for side, size, shift in zip(self.padded, self.size, self.shift, strict=True):
            place = torch.arange(side)
            regions.append((place >= side - size).long() + (place >= side - shift).long())
        rolled = 3 * regions[0][:, None] + regions[1]  # regions after the shift
        region = self.tile(rolled[None, :, :, None])[0, :, :, 0]  # (windows, n)
        return region[:, :, None] != region[:, None]


class WindowPosition(Position):
    """A learned bias for each head and offset inside a window, and the mask of shifted windows.

    Each block has one table. It starts as the authors' table: truncated normal with standard
    deviation 0.02. Deviation: masked scores are minus infinity. The authors and torchvision
    subtract 100 instead.
    """

    barrier: Tensor | None

    def __init__(self, windows: Windows, num_heads: int, relative: Position | None) -> None:
        """Use ``relative`` as the position inside each window; None has no positions."""
        super().__init__()
        self.count, self.num_heads = windows.counts[0] * windows.counts[1], num_heads
        self.relative = relative
        self.register_buffer("barrier", windows.border_mask(), persistent=False)

    def init_weights(self, draws: Draws) -> None:
        if isinstance(self.relative, RelativeBias):
            generator = draws("relative.relative_table")
            nn.init.trunc_normal_(self.relative.relative_table, std=0.02, generator=generator)

    def forward(self, heads: Tensor) -> Tensor:
        """Return q or k with ``relative`` applied in each window: (B, windows h, n, d) -> same."""
        if self.relative is None or not self.relative.turns_heads:
            return heads
        windows = heads.unflatten(1, (self.count, self.num_heads)).flatten(0, 1)
        return self.relative(windows).reshape(heads.shape)

    def bias(self) -> Tensor | None:
        """Return the bias (1, windows h, n, n). The rule treats each head of a window as a head."""
        scores = None if self.relative is None else self.relative.bias()  # (1, h, n, n)
        if scores is None:
            if self.barrier is None:
                return None
            scores = torch.zeros(1, self.num_heads, 1, 1, device=self.barrier.device)
        if self.barrier is not None:
            scores = scores.masked_fill(self.barrier[:, None], float("-inf"))
        return scores.expand(self.count, -1, -1, -1).flatten(0, 1)[None]


class WindowAttention(SelfAttention):
    """Attention inside the windows of a grid: (B, N, D) -> (B, N, D), O(N n).

    If the windows do not divide the grid, the grid is padded with zeros below and to the right.
    Tokens attend to the padding, as in torchvision and in the authors' code for detection.
    """

    attends_globally = False

    def __init__(
        self,
        shape: TokenShape,
        attend: nn.Module,
        windows: Windows,
        relative: Position | None = None,
        **options: Any,
    ) -> None:
        position = WindowPosition(windows, shape.num_heads, relative)
        super().__init__(shape, attend, position, **options)
        self.windows = windows

    def forward(self, x: Tensor) -> Tensor:
        (height, width), (bottom, right) = self.windows.grid_size, self.windows.padded
        if (height, width) == (bottom, right):
            return super().forward(x)
        grid = F.pad(x.unflatten(1, (height, width)), (0, 0, 0, right - width, 0, bottom - height))
        out = super().forward(grid.flatten(1, 2)).unflatten(1, (bottom, right))
        return out[:, :height, :width].flatten(1, 2)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v: (B, N, 3 D) -> three times (B, windows h, n, d)."""
        windows = self.windows.cut(qkv.unflatten(1, self.windows.padded))
        parts = windows.unflatten(-1, (3, self.num_heads, -1))  # (B, W, n, 3, h, d)
        q, k, v = parts.permute(3, 0, 1, 4, 2, 5).flatten(2, 3)
        return self.position(q), self.position(k), v

    def _merge_heads(self, out: Tensor) -> Tensor:
        windows = out.unflatten(1, (-1, self.num_heads)).transpose(2, 3).flatten(3)
        return self.proj_drop(self.proj(self.windows.join(windows).flatten(1, 2)))


class PatchMerging(nn.Module):
    """Patch merging, from 2x2 tokens to one token of twice the width: (B, N, D) -> (B, N / 4, 2 D).

    The four tokens are concatenated, normalised and mapped by a linear layer without bias. An odd
    side is padded with zeros.
    """

    def __init__(self, before: TokenShape, norm: nn.Module) -> None:
        """Use ``norm`` for the concatenated tokens, which have 4 times the width of ``before``."""
        super().__init__()
        self.grid_size = before.grid_size
        self.norm = norm
        self.reduction = Linear(4 * before.embed_dim, 2 * before.embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width = self.grid_size
        grid = F.pad(x.unflatten(1, self.grid_size), (0, 0, 0, width % 2, 0, height % 2))
        corners = [grid[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, dim=-1).flatten(1, 2)))
