"""Convolutions on the tokens of a grid. Axes: B batch, N = H W tokens in reading order, D width.

The features of a token are adjacent in memory, so tokens already have the memory layout
``channels_last`` of a map. Converting between tokens and maps copies nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.block import DropPath, Join
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.ops.backend import Gelu, Linear

EXPANSION = 4
"""Hidden width of a block divided by its output width."""
SQUEEZE = 4
"""Output width of a block divided by the hidden width of its squeeze-and-excitation."""


def as_map(tokens: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return tokens as a map: (B, N, D) -> (B, D, H, W)."""
    return tokens.mT.unflatten(2, grid_size)


def as_tokens(grid: Tensor) -> Tensor:
    """Return a map as tokens: (B, D, H, W) -> (B, N, D)."""
    return grid.flatten(2).mT


class Downsample(nn.Module):
    """2x2 max-pooling: (B, N, D) -> (B, N / 4, D). Half of an odd side is rounded up."""

    def __init__(self, before: TokenShape) -> None:
        super().__init__()
        self.grid_size = before.grid_size

    def forward(self, x: Tensor) -> Tensor:
        return as_tokens(F.max_pool2d(as_map(x, self.grid_size), 2, ceil_mode=True))


def build_shortcut(before: TokenShape, shape: TokenShape) -> nn.Sequential:
    """Return Proj(Pool(x)) as layers: (B, N, D) -> (B, N', D').

    Pool is omitted if the grid does not change. Proj is omitted if the width does not change.
    """
    layers: list[nn.Module] = []
    if before.grid_size != shape.grid_size:
        layers.append(Downsample(before))
    if before.embed_dim != shape.embed_dim:
        layers.append(Linear(before.embed_dim, shape.embed_dim))
    return nn.Sequential(*layers)


class DepthwiseConv(nn.Module):
    """A 3x3 convolution with one input feature per filter: (B, N, D) -> (B, N', D').

    D' is a multiple of D. On a CPU, a convolution with a stride is always computed in fp32,
    because torch takes several times as long for the gradient in bf16. The script
    ``experiments/speed/strided_filters.py`` measures the difference.
    """

    def __init__(
        self, dim: int, out_dim: int, grid_size: tuple[int, int], stride: int, *, bias: bool
    ) -> None:
        super().__init__()
        self.grid_size, self.has_stride = grid_size, stride > 1
        self.conv = nn.Conv2d(dim, out_dim, 3, stride, padding=1, groups=dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        grid = as_map(x, self.grid_size)
        if not (self.has_stride and x.device.type == "cpu" and torch.is_autocast_enabled("cpu")):
            return as_tokens(self.conv(grid))
        with torch.autocast("cpu", enabled=False):
            return as_tokens(self.conv(grid.float())).to(x.dtype)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation, x sigmoid(silu(mean(x) W1) W2): (B, N, D) -> (B, N, D).

    The mean is over all tokens. Hu et al. 2018, https://arxiv.org/abs/1709.01507. Deviation: SiLU
    instead of ReLU, as in later models.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.fc2 = Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(F.silu(self.fc1(x.mean(1, keepdim=True)))).sigmoid()


class MBConv(nn.Module):
    """MBConv, x + project(excite(depthwise(expand(norm(x))))): (B, N, D) -> (B, N', D').

    Sandler et al. 2018, https://arxiv.org/abs/1801.04381. The batch norm in front and GELU are as
    in Dai et al. 2021, https://arxiv.org/abs/2106.04803. The block halves the grid if ``before``
    has a larger grid than ``shape``. Deviation: the depthwise convolution has the stride, as in
    timm and torchvision. In the paper's formula the 1x1 convolution has the stride, so it would
    ignore three of four tokens.
    """

    def __init__(
        self,
        before: TokenShape,
        shape: TokenShape,
        shortcut: nn.Module,
        join: Join = torch.add,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        wide = EXPANSION * shape.embed_dim
        stride = 1 if before.grid_size == shape.grid_size else 2
        self.branch = nn.Sequential(
            TokenBatchNorm(before.embed_dim),
            Linear(before.embed_dim, wide, bias=False),
            TokenBatchNorm(wide),
            Gelu(),
            DepthwiseConv(wide, wide, before.grid_size, stride, bias=False),
            TokenBatchNorm(wide),
            Gelu(),
            SqueezeExcite(wide, max(1, shape.embed_dim // SQUEEZE)),
            Linear(wide, shape.embed_dim),
        )
        self.shortcut, self.join = shortcut, join
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.shortcut(x), self.drop_path(self.branch(x)))
