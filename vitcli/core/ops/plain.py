"""Plain definitions of the ops in torch, for any device. Every backend must compute the same.

The definition of attention is in ``ops/attention.py``. Axes: D features, other axes before it.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


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


def attention_branch(
    x: Tensor,
    norm: nn.Module,
    qkv: nn.Linear,
    proj: nn.Linear,
    num_heads: int,
    scale: float,
    adds: bool,
    num_queries: int,
) -> Tensor | None:
    """Return proj(attention(qkv(norm(x)))) of the first M tokens, (B, N, D) -> (B, M, D).

    ``adds`` adds these tokens of x. None means that the backend does not compute branches in one
    call: the layers of the branch compute the result one after the other, as they do here.
    """
    return None


def ffn_branch(
    x: Tensor, norm: nn.Module, fc1: nn.Linear, fc2: nn.Linear, adds: bool
) -> Tensor | None:
    """Return fc2(gelu(fc1(norm(x)))), with x added if ``adds``: (..., D) -> (..., D).

    None means the same as in ``attention_branch``.
    """
    return None
