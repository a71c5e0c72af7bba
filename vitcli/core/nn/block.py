"""The transformer block: a list of residual branches, each filled from slots.

Axes: B batch, N tokens, D embed_dim.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitcli.core.make import make, maker
from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.norm import StatisticsHeld, build_norm
from vitcli.core.nn.pos_embed import build_position
from vitcli.core.ops.backend import UsesBackend
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.slots import FFNS, NORM_POSITIONS, RESIDUALS

T = TypeVar("T")
Join = Callable[[Tensor, Tensor], Tensor]


def keep_branch(_: Tensor, branch: Tensor) -> Tensor:
    """The join of a network without skip connections."""
    return branch


def build_join(spec: TokenSpec) -> Join:
    """Return how a branch joins its input."""
    join: Join = maker(RESIDUALS[spec.residual].build)
    return join


class DropPath(nn.Module):
    """Drop a branch for whole samples with probability ``rate``, scaling up the survivors.

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


class LayerScale(nn.Module):
    """A learned factor per feature, (B, N, D) -> (B, N, D).

    Touvron et al. 2021, https://arxiv.org/abs/2103.17239
    """

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Stream(NamedTuple):
    """Tokens (B, N, D), and the output of the last branch, which is still to be added to them.

    The next norm has to read all tokens anyway, so a backend can add the branch in the same pass
    over memory. To train with such a backend, a model passes a stream through its blocks instead
    of a tensor. Each branch takes a stream and returns a stream; the last norm returns a tensor.
    """

    tokens: Tensor
    branch: Tensor | None = None

    @classmethod
    def of(cls, tokens: "Tokens") -> "Stream":
        return tokens if isinstance(tokens, Stream) else cls(tokens)


Tokens = Tensor | Stream


class PreNorm(UsesBackend, nn.Module):
    """join(x, drop_path(scale(inner(norm(x)))))."""

    def __init__(self, norm: nn.Module, inner: nn.Module, join: Join, after: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.join, self.after = norm, inner, join, after

    @property
    def takes_streams(self) -> bool:
        """Whether the sum is plain, and a LayerNorm follows that can compute it."""
        return self.join is torch.add and type(self.norm) is nn.LayerNorm

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return norm_sizes(self.norm)

    def inner_input(self, x: Tensor) -> Tensor:
        """What the inner part sees."""
        return self.backend.add_norm(x, None, self.norm)[1]

    def enter(self, x: Tokens) -> tuple[Tensor, Tensor]:
        """The tokens, and what the inner part sees of them."""
        if isinstance(x, Stream):
            return self.backend.add_norm(*x, self.norm)
        return x, self.inner_input(x)

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        """Put what the inner part returned beside the input."""
        return self.join(x, self.after(branch))

    def forward(self, x: Tokens) -> Tokens:
        tokens, seen = self.enter(x)
        branch = self.inner(seen)
        if isinstance(x, Stream):
            return Stream(tokens, self.after(branch))
        return self.merge(tokens, branch)


def norm_sizes(norm: nn.Module) -> dict[str, tuple[int, ...]]:
    """``op_sizes`` of a layer that calls ``add_norm`` with this norm."""
    return {"add_norm": tuple(norm.normalized_shape)} if type(norm) is nn.LayerNorm else {}


class PostNorm(PreNorm):
    """norm(join(x, drop_path(scale(inner(x))))), as in the first transformer."""

    takes_streams = False

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def inner_input(self, x: Tensor) -> Tensor:
        return x

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.norm(self.join(x, self.after(branch)))


def drop_path_rates(last: float, count: int) -> list[float]:
    """Of so many blocks: linearly from 0 at the first to ``last`` at the last."""
    return [last * i / max(1, count - 1) for i in range(count)]


def build_block(
    spec: TokenSpec, shape: TokenShape, drop_path: float, attention: SelfAttention | None = None
) -> nn.Sequential:
    """An attention branch and an FFN branch; a branch without inner part is not built.

    Attention is over the whole sequence unless another is given.
    """
    if attention is None:
        attention = SelfAttention(spec, shape, build_position(spec, shape))
    inners: dict[str, nn.Module] = {"attn": attention}
    if FFNS[spec.ffn].build:
        inners["ffn"] = make(FFNS[spec.ffn], spec)

    def branch(inner: nn.Module) -> PreNorm:
        dim = spec.embed_dim
        scale = [LayerScale(dim, spec.layer_scale_init)] if spec.layer_scale_init else []
        after = nn.Sequential(*scale, DropPath(drop_path))
        parts = build_norm(spec, dim), inner, build_join(spec), after
        built: PreNorm = make(NORM_POSITIONS[spec.branch_norm], *parts)
        return built

    return nn.Sequential(OrderedDict((name, branch(inner)) for name, inner in inners.items()))


def forward_with_weights(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A block's output and the attention weights (B, h, N, N) that went into it."""
    attn, *others = block.children()
    assert isinstance(attn, PreNorm)
    assert isinstance(attn.inner, SelfAttention)
    out, weights = attn.inner.forward_with_weights(attn.inner_input(x))
    x = attn.merge(x, out)
    for branch in others:
        x = branch(x)
    return x, weights


def forward_first(block: nn.Module, x: Tokens) -> Tokens:
    """``block(x)[:, :1]``: the other tokens are only attended to, (B, N, D) -> (B, 1, D)."""
    attn, *others = block.children()
    assert isinstance(attn, PreNorm)
    assert isinstance(attn.inner, SelfAttention)
    tokens, seen = attn.enter(x)
    first = attn.merge(tokens[:, :1], attn.inner.forward_first(seen))
    out: Tokens = Stream(first) if isinstance(x, Stream) else first
    for branch in others:
        out = branch(out)
    return out


def recomputed(block: nn.Module, x: T) -> T:
    """block(x) without storing what is inside: the backward pass computes it again.

    Same dropout, same gradients, and BatchNorm counts the batch once. Chen et al. 2016,
    https://arxiv.org/abs/1604.06174
    """
    if torch.compiler.is_compiling():  # there no statistics are counted in the second pass
        return checkpoint(block, x, use_reentrant=False)
    contexts = (nullcontext(), StatisticsHeld(block))
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: contexts)
