"""Plain definitions of the ops in torch, for any device. Every backend must compute the same.

The definition of attention is in ``ops/attention.py``. Axes: D features, other axes before it.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x w^T + b: x (..., in), w (out, in), b (out,) -> (..., out)."""
    return F.linear(x, weight, bias)


def gelu(x: Tensor) -> Tensor:
    """Return x Phi(x) for any shape, where Phi is the standard normal distribution function."""
    return F.gelu(x)


def add_norm(
    x: Tensor, branch: Tensor | None, norm: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return (x + branch, norm(x + branch)), each (..., D); without a branch (x, norm(x))."""
    total = x if branch is None else x + branch
    return total, norm(total)
