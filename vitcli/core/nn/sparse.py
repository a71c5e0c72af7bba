"""Sparse attention on the grid of patches, computed without an N x N matrix.

Axes: B batch, h heads, N tokens (P prefix tokens first, then H x W patches), d width of a head.
The prefix (CLS, registers) is global: it attends to all tokens, and all tokens attend to it. A
single query (CLS in the last block) is a prefix token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.nn.attention import AttentionRule, TokenShape, build_scale
from vitcli.core.ops.backend import attention, attention_weights


class Sparse(AttentionRule):
    """Base class of sparse patterns, with a global prefix and one softmax over all groups."""

    def __init__(self, shape: TokenShape, *, scale: str = "head_dim", dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = build_scale(scale, shape)
        self.dropout = dropout
        self.grid_size, self.num_prefix = shape.grid_size, shape.num_prefix_tokens

    def mask(self) -> Tensor:
        """Return (N, N), True where a query may attend to a key. Only maps and tests use it."""
        height, width = self.grid_size
        rows, columns = torch.arange(height * width) // width, torch.arange(height * width) % width
        across = (rows[:, None] - rows).abs(), (columns[:, None] - columns).abs()
        allowed = torch.ones(2 * (self.num_prefix + height * width,), dtype=torch.bool)
        allowed[self.num_prefix :, self.num_prefix :] = self.pattern(*across)
        return allowed

    def pattern(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return whether patches attend to each other, from their distance in rows and columns."""
        raise NotImplementedError

    def patches(
        self, query: Tensor, key: Tensor, value: Tensor, prefix: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the output of the patches, (B, h, H, W, d).

        ``prefix`` holds the scores from patches to prefix tokens, (B, h, H, W, P), and the values
        of the prefix, (B, h, 1, P, d).
        """
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, first = query * self.scale(), self.num_prefix
        rate, to_all = self.dropout if self.training else 0.0, query[:, :, :first]
        front = attention(to_all, key, value, scale=1.0, dropout=rate, fused=self.fused)
        if query.shape[2] <= first:
            return front
        grid = (2, self.grid_size)
        cells = [part[:, :, first:].unflatten(*grid) for part in (query, key, value)]
        to_prefix = cells[0] @ key[:, :, None, :first].mT  # (B, h, H, W, P)
        prefix = to_prefix, value[:, :, None, :first]
        out = self.patches(cells[0], cells[1], cells[2], prefix).flatten(2, 3)
        return torch.cat([front, out.to(front.dtype)], dim=2) if first else out

    def _softmax(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """Return weights from one softmax over several groups of scores (B, h, H, W, *)."""
        sizes = [part.shape[-1] for part in scores]
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        if self.training:
            weights = F.dropout(weights, self.dropout)
        return weights.split(sizes, dim=-1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the weights as (B, h, N, N), zero for pairs outside the pattern."""
        mask = self.mask().to(query.device)
        return attention_weights(query, key, scale=self.scale(), mask=mask[-query.shape[2] :])


class Strided(Sparse):
    """Attention of a patch to its row, its column and the prefix, O(N sqrt(N)) on a square grid.

    The pattern of Child et al. 2019, https://arxiv.org/abs/1904.10509, for images and
    without a causal mask. The patch itself is in both its row and its column, and counts once.
    """

    def pattern(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows == 0) | (columns == 0)

    def patches(
        self, query: Tensor, key: Tensor, value: Tensor, prefix: tuple[Tensor, Tensor]
    ) -> Tensor:
        in_row = query @ key.mT  # (B, h, H, W, W)
        q, k, v = (part.transpose(2, 3) for part in (query, key, value))
        own = torch.eye(self.grid_size[0], dtype=torch.bool, device=query.device)
        in_column = (q @ k.mT).masked_fill(own, float("-inf")).transpose(2, 3)  # (B, h, H, W, H)
        row, column, front = self._softmax(in_row, in_column, prefix[0])
        out = row @ value + (column.transpose(2, 3) @ v).transpose(2, 3)
        return out + front @ prefix[1]


class Local(Sparse):
    """Attention of a patch to a window around it and to the prefix, O(N w^2).

    Sliding windows as in Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, on two axes.
    ``window`` is the side w of the window, an odd number. The border of the grid cuts windows
    off. The products are element-wise, so a count of matrix products does not include them.
    """

    def __init__(
        self, shape: TokenShape, *, window: int = 3, scale: str = "head_dim", dropout: float = 0.0
    ) -> None:
        super().__init__(shape, scale=scale, dropout=dropout)
        self.radius = window // 2

    def pattern(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows <= self.radius) & (columns <= self.radius)

    def patches(
        self, query: Tensor, key: Tensor, value: Tensor, prefix: tuple[Tensor, Tensor]
    ) -> Tensor:
        height, width = self.grid_size
        near_keys = self._neighbours(key)
        scores = torch.stack([(query * near).sum(dim=-1) for near in near_keys], dim=-1)
        inside = torch.stack(list(self._neighbours(query.new_ones(1, 1, height, width, 1))), dim=-1)
        scores = scores.masked_fill(inside[:, :, :, :, 0] == 0, float("-inf"))
        window, front = self._softmax(scores, prefix[0])
        out = (front @ prefix[1]).float() if value.dtype.itemsize < 4 else front @ prefix[1]
        for weight, near in zip(window.unbind(dim=-1), self._neighbours(value), strict=True):
            out = out + weight[..., None] * near
        return out.to(value.dtype)

    def _neighbours(self, x: Tensor) -> list[Tensor]:
        height, width = self.grid_size
        radius = self.radius
        padded = F.pad(x, (0, 0, radius, radius, radius, radius))
        side = range(2 * radius + 1)
        return [padded[:, :, i : i + height, j : j + width] for i in side for j in side]
