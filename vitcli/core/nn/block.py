"""The transformer block: a sequence of residual branches.

Axes: B batch, N tokens, D embed_dim.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.norm import FrozenStatistics
from vitcli.core.ops.backend import PLAIN, UsesBackend, compute_branch

T = TypeVar("T")
Join = Callable[[Tensor, Tensor], Tensor]


def keep_branch(_: Tensor, branch: Tensor) -> Tensor:
    """Return the branch without its input, for networks without residual connections."""
    return branch


class DropPath(nn.Module):
    """Stochastic depth: drop a branch for whole samples with probability ``rate``.

    The branch of all other samples is divided by 1 - ``rate``.
    Huang et al. 2016, https://arxiv.org/abs/1603.09382
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.rate  # (B, 1, 1)
        return x * (keep / (1 - self.rate)).to(x.dtype)


def drop_path_rates(last: float, count: int) -> list[float]:
    """Return ``count`` rates that grow linearly from 0 to ``last``."""
    return [last * i / max(1, count - 1) for i in range(count)]


class LayerScale(nn.Module):
    """A learned factor for each feature: (B, N, D) -> (B, N, D).

    Touvron et al. 2021, https://arxiv.org/abs/2103.17239
    """

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Branch(UsesBackend, nn.Module):
    """Base class of residual branches, which differ in the place of the norm.

    ``inner`` is attention or a feed-forward network, ``after`` the LayerScale and DropPath of its
    output, and ``join`` adds that output to the input of the branch.
    """

    norm_is_first = False
    """Whether the branch is pre-norm, which a backend may compute."""

    def __init__(self, norm: nn.Module, inner: nn.Module, join: Join, after: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.join, self.after = norm, inner, join, after

    def inner_input(self, x: Tensor) -> Tensor:
        """Return the input of the inner layer for tokens ``x``."""
        raise NotImplementedError

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the output of the branch from its input and the output of the inner layer."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor | None = None if self.backend is PLAIN else compute_branch(self, x)
        return self.merge(x, self.inner(self.inner_input(x))) if out is None else out

    def forward_first(self, x: Tensor) -> Tensor:
        """Return ``forward(x)[:, :1]`` of an attention branch, computed for one query only."""
        if self.backend is not PLAIN:
            out: Tensor | None = compute_branch(self, x, first_only=True)
            if out is not None:
                return out
        assert isinstance(self.inner, SelfAttention)
        branch = self.inner.forward_first(self.inner_input(x))
        return self.merge(x[:, :1], branch)  # sliced after it: gradients are summed in this order


class PreNormBranch(Branch):
    """A pre-norm branch, join(x, after(inner(norm(x))))."""

    norm_is_first = True

    def inner_input(self, x: Tensor) -> Tensor:
        return self.backend.norm(x, self.norm)

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.join(x, self.after(branch))


class PostNormBranch(Branch):
    """A post-norm branch, norm(join(x, after(inner(x)))), as in Vaswani et al. 2017."""

    def inner_input(self, x: Tensor) -> Tensor:
        return x

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.norm(self.join(x, self.after(branch)))


class Block(nn.Module):
    """An attention branch, then a feed-forward branch if there is one: (B, N, D) -> (B, N, D)."""

    def __init__(self, attn: Branch, ffn: Branch | None = None) -> None:
        super().__init__()
        self.attn, self.ffn = attn, ffn

    def forward(self, x: Tensor) -> Tensor:
        return self._feed_forward(self.attn(x))

    def forward_first(self, x: Tensor) -> Tensor:
        """Return ``forward(x)[:, :1]``, computed for the first token only: (B, 1, D)."""
        return self._feed_forward(self.attn.forward_first(x))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the attention weights (B, h, N, N) that it depends on."""
        assert isinstance(self.attn.inner, SelfAttention)
        out, weights = self.attn.inner.forward_with_weights(self.attn.inner_input(x))
        return self._feed_forward(self.attn.merge(x, out)), weights

    def states_all(self, x: Tensor) -> bool:
        """Return whether the weights of the attention give its whole output for tokens ``x``."""
        assert isinstance(self.attn.inner, SelfAttention)
        return self.attn.inner.states_all(self.attn.inner_input(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return x if self.ffn is None else self.ffn(x)


def forward_recomputed(block: nn.Module, x: T) -> T:
    """Return ``block(x)`` without storing activations; the backward pass recomputes them.

    Dropout and gradients are unchanged, and buffers such as statistics change once per batch.
    Chen et al. 2016, https://arxiv.org/abs/1604.06174
    """
    if torch.compiler.is_compiling():  # compiled code does not update statistics twice
        return checkpoint(block, x, use_reentrant=False)
    contexts = (nullcontext(), FrozenStatistics(block))
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: contexts)
