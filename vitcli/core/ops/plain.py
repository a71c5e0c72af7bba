"""The plain definitions: what every backend's op must compute, in torch, on any device.

Attention has a file of its own. Axes: D features, any others before them.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x w^T + b: x (..., in), w (out, in), b (out,) -> (..., out)."""
    return F.linear(x, weight, bias)


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), Phi being the standard normal distribution; any shape."""
    return F.gelu(x)


def add_norm(
    x: Tensor, branch: Tensor | None, norm: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """(x + branch, norm(x + branch)), each (..., D); without a branch (x, norm(x))."""
    total = x if branch is None else x + branch
    return total, norm(total)
