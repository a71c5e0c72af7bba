"""Position embeddings, which are added to the tokens, rotate q and k, or bias the scores.

Axes: B batch, N tokens (prefix first), P patches, D embed_dim, h num_heads, d = D / h.
"""

import torch
from torch import Tensor, nn

from vitcli.core.nn.attention import Position, TokenShape

BASE = 10_000.0


def sincos(positions: Tensor, dim: int) -> Tensor:
    """Return sines and cosines of positions: (P,) -> (P, dim), where ``dim`` is even.

    PE(pos, 2i) = sin(pos / 10000^(2i/dim)), PE(pos, 2i+1) = cos(pos / 10000^(2i/dim)).
    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    """
    angles = positions[:, None].double() / BASE ** (torch.arange(0, dim, 2).double() / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def grid_positions(grid_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns of all patches, each (P,)."""
    rows, columns = torch.meshgrid(*[torch.arange(side) for side in grid_size], indexing="ij")
    return rows.flatten(), columns.flatten()


def sincos2d(grid_size: tuple[int, int], dim: int) -> Tensor:
    """Return sines and cosines of row and column, (P, dim), where ``dim`` is divisible by 4.

    The first half of the width encodes the row, the second half the column. This is
    concat(PE_y, PE_x) of the course report.
    """
    rows, columns = grid_positions(grid_size)
    return torch.cat([sincos(rows, dim // 2), sincos(columns, dim // 2)], dim=1)


class Learned(nn.Module):
    """A learned vector for each position, (1, N, D), in the order of the tokens."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, shape.num_tokens, shape.embed_dim))

    def forward(self) -> Tensor:
        return self.table


class Fixed(nn.Module):
    """A constant table, (1, N, D). It is not a parameter and is not saved."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table[None], persistent=False)

    def forward(self) -> Tensor:
        return self.table


class Rope2d(Position):
    """Rotary positions along both axes: (B, h, N, d) -> (B, h, N, d). The prefix is not rotated.

    Su et al. 2021, https://arxiv.org/abs/2104.09864. The row rotates the first half of a head and
    the column rotates the second half (the axial form of Heo et al. 2024,
    https://arxiv.org/abs/2403.13298). So scores depend on relative offsets only. Deviation: the
    frequencies lie between 1 and 1/100. Su et al. use a base of 10000, for texts of thousands of
    words. On an 8x8 grid, most angles with this base would hardly change.
    """

    cos: Tensor
    sin: Tensor
    FREQUENCY_BASE = 100.0

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        count = shape.head_dim // 4
        frequencies = self.FREQUENCY_BASE ** -(torch.arange(count).double() / count)
        angles = [place[:, None] * frequencies for place in grid_positions(shape.grid_size)]
        turned = torch.cat(angles, dim=1)  # (P, d / 2)
        still = torch.zeros(shape.num_prefix_tokens, turned.shape[1], dtype=turned.dtype)
        table = torch.cat([still, turned])  # (N, d / 2)
        self.register_buffer("cos", table.cos().float(), persistent=False)
        self.register_buffer("sin", table.sin().float(), persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        even, odd = heads[..., ::2], heads[..., 1::2]
        cos, sin = self.cos.to(heads.dtype), self.sin.to(heads.dtype)
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2)


class RelativeBias(Position):
    """A learned bias for each head and relative offset, with one table in each block.

    Liu et al. 2021, https://arxiv.org/abs/2103.14030. Here the window is the whole grid. The table
    starts at zero. Scores from and to prefix tokens have no bias.
    """

    index: Tensor

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        height, width = shape.grid_size
        self.num_prefix_tokens = shape.num_prefix_tokens
        self.relative_table = nn.Parameter(
            torch.zeros(shape.num_heads, (2 * height - 1) * (2 * width - 1))
        )
        rows, columns = grid_positions(shape.grid_size)
        down = rows[:, None] - rows[None] + height - 1
        right = columns[:, None] - columns[None] + width - 1
        self.register_buffer("index", down * (2 * width - 1) + right, persistent=False)  # (P, P)

    def bias(self) -> Tensor:
        """Return the bias (1, h, N, N), which is zero for the prefix."""
        prefix = self.num_prefix_tokens
        return nn.functional.pad(self.relative_table[:, self.index], (prefix, 0, prefix, 0))[None]


def sincos1d_table(shape: TokenShape) -> Fixed:
    """Return ``sincos`` of the indices 0, 1, ... of all tokens."""
    return Fixed(sincos(torch.arange(shape.num_tokens), shape.embed_dim))


def sincos2d_table(shape: TokenShape) -> Fixed:
    """Return ``sincos2d`` of the grid, after rows of zeros for the prefix."""
    table = sincos2d(shape.grid_size, shape.embed_dim)
    return Fixed(nn.functional.pad(table, (0, 0, shape.num_prefix_tokens, 0)))


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Return a table of positions for another grid of patches: (1, N, D) -> (1, N', D).

    The patches' positions are resized as an image of D channels, bilinearly. The prefix's positions
    stay. Dosovitskiy et al. 2021, section 3.2, resize in the same way for larger images.
    """
    if old == new:
        return table
    first = table.shape[1] - old[0] * old[1]
    image = table[:, first:].mT.unflatten(-1, old)  # (1, D, rows, columns)
    resized = nn.functional.interpolate(image.float(), size=new, mode="bilinear")
    return torch.cat([table[:, :first], resized.flatten(2).mT.to(table.dtype)], dim=1)
