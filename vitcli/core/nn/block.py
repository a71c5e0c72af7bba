"""The transformer block: a sequence of residual branches, built from the slots of the spec.

Axes: B batch, N tokens, D embed_dim.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitcli.core.make import make
from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.inner import InnerLayer
from vitcli.core.nn.norm import FrozenStatistics, build_norm
from vitcli.core.nn.pos_embed import build_position
from vitcli.core.ops.backend import UsesBackend
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.rows import load_target
from vitcli.core.spec.slots import FFNS, NORM_POSITIONS, RESIDUALS

T = TypeVar("T")
Join = Callable[[Tensor, Tensor], Tensor]


def keep_branch(_: Tensor, branch: Tensor) -> Tensor:
    """Return the branch without its input, for networks without residual connections."""
    return branch


def build_join(spec: TokenSpec) -> Join:
    """Return the function that combines the input of a branch with its output."""
    join: Join = load_target(RESIDUALS[spec.residual].build)
    return join


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


class LayerScale(nn.Module):
    """A learned factor for each feature: (B, N, D) -> (B, N, D).

    Touvron et al. 2021, https://arxiv.org/abs/2103.17239
    """

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Stream(NamedTuple):
    """Tokens (B, N, D), and the last branch's output, which must still be added to the tokens.

    The next norm reads all tokens anyway, so a backend can add the branch in the same pass over
    memory. A model that trains with such a backend passes a stream through its blocks instead of a
    tensor. Each branch takes and returns a stream. The last norm returns a tensor.
    """

    tokens: Tensor
    branch: Tensor | None = None

    @classmethod
    def of(cls, tokens: "Tokens") -> "Stream":
        """Return ``tokens`` as a stream; a tensor becomes a stream without a branch."""
        return tokens if isinstance(tokens, Stream) else cls(tokens)


Tokens = Tensor | Stream


def is_idle(layer: nn.Module) -> bool:
    """Return whether a layer (DropPath, LayerScale or dropout) returns its input unchanged."""
    if isinstance(layer, DropPath):
        return not layer.training or layer.rate == 0
    return isinstance(layer, nn.Dropout) and (not layer.training or layer.p == 0)


class PreNorm(UsesBackend, nn.Module):
    """A pre-norm residual branch: join(x, drop_path(scale(inner(norm(x)))))."""

    def __init__(self, norm: nn.Module, inner: nn.Module, join: Join, after: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.join, self.after = norm, inner, join, after

    @property
    def takes_streams(self) -> bool:
        """Return whether the branch accepts streams.

        The join must be a plain sum, and the norm must be a LayerNorm.
        """
        return self.join is torch.add and type(self.norm) is nn.LayerNorm

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return norm_op_sizes(self.norm)

    def inner_input(self, x: Tensor) -> Tensor:
        """Return the input of the inner layer for tokens ``x``."""
        return self.backend.add_norm(x, None, self.norm)[1]

    def enter(self, x: Tokens) -> tuple[Tensor, Tensor]:
        """Return the tokens, and the input of the inner layer."""
        if isinstance(x, Stream):
            return self.backend.add_norm(*x, self.norm)
        return x, self.inner_input(x)

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the output of the branch from its input and the output of the inner layer."""
        return self.join(x, self.after(branch))

    def forward(self, x: Tokens) -> Tokens:
        if isinstance(x, Stream):
            tokens, seen = self.enter(x)
            return Stream(tokens, self.after(self.inner(seen)))
        whole = self.whole_branch(x, x.shape[1])
        return self.merge(x, self.inner(self.inner_input(x))) if whole is None else whole

    def whole_branch(self, x: Tensor, num_queries: int) -> Tensor | None:
        """Return the branch's output for the first tokens, if the backend computes it in one call.

        Otherwise return None. (B, N, D) -> (B, num_queries, D)
        """
        if not isinstance(self.inner, InnerLayer):
            return None
        adds = self.join is torch.add and all(
            map(is_idle, [*self.after.children(), self.inner.last])
        )
        out = self.inner.after_norm(x, self.norm, adds, num_queries)
        return out if out is None or adds else self.merge(x[:, :num_queries], out)


def norm_op_sizes(norm: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return ``op_sizes`` of a layer that calls ``add_norm`` with this norm."""
    return {"add_norm": tuple(norm.normalized_shape)} if type(norm) is nn.LayerNorm else {}


class PostNorm(PreNorm):
    """A post-norm branch, norm(join(x, drop_path(scale(inner(x))))), as in Vaswani et al. 2017."""

    takes_streams = False

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def whole_branch(self, x: Tensor, num_queries: int) -> None:
        return None

    def inner_input(self, x: Tensor) -> Tensor:
        return x

    def merge(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.norm(self.join(x, self.after(branch)))


def drop_path_rates(last: float, count: int) -> list[float]:
    """Return ``count`` rates that grow linearly from 0 to ``last``."""
    return [last * i / max(1, count - 1) for i in range(count)]


def build_block(
    spec: TokenSpec, shape: TokenShape, drop_path: float, attention: SelfAttention | None = None
) -> nn.Sequential:
    """Return a block of an attention branch and, unless ``ffn`` is ``none``, an FFN branch.

    If ``attention`` is None, the branch uses ``SelfAttention`` over the whole sequence.
    """
    if attention is None:
        attention = SelfAttention(spec, shape, build_position(spec, shape))
    inners: dict[str, nn.Module] = {"attn": attention}
    if FFNS[spec.ffn].build:
        inners["ffn"] = make(FFNS[spec.ffn], spec, shape)

    def branch(inner: nn.Module) -> PreNorm:
        dim = spec.embed_dim
        scale = [LayerScale(dim, spec.layer_scale_init)] if spec.layer_scale_init else []
        after = nn.Sequential(*scale, DropPath(drop_path))
        parts = build_norm(spec, dim), inner, build_join(spec), after
        built: PreNorm = make(NORM_POSITIONS[spec.branch_norm], *parts)
        return built

    return nn.Sequential(OrderedDict((name, branch(inner)) for name, inner in inners.items()))


def forward_with_weights(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a block and the attention weights (B, h, N, N) that it used."""
    attn, *others = block.children()
    assert isinstance(attn, PreNorm)
    assert isinstance(attn.inner, SelfAttention)
    out, weights = attn.inner.forward_with_weights(attn.inner_input(x))
    x = attn.merge(x, out)
    for branch in others:
        x = branch(x)
    return x, weights


def forward_first(block: nn.Module, x: Tokens) -> Tokens:
    """Return ``block(x)[:, :1]``, computed for the first token only: (B, N, D) -> (B, 1, D)."""
    attn, *others = block.children()
    assert isinstance(attn, PreNorm)
    assert isinstance(attn.inner, SelfAttention)
    first = None if isinstance(x, Stream) else attn.whole_branch(x, 1)
    if first is None:
        tokens, seen = attn.enter(x)
        first = attn.merge(tokens[:, :1], attn.inner.forward_first(seen))
    out: Tokens = Stream(first) if isinstance(x, Stream) else first
    for branch in others:
        out = branch(out)
    return out


def forward_recomputed(block: nn.Module, x: T) -> T:
    """Return ``block(x)`` without storing activations; the backward pass recomputes them.

    Dropout and gradients are unchanged, and BatchNorm updates its statistics once per batch.
    Chen et al. 2016, https://arxiv.org/abs/1604.06174
    """
    if torch.compiler.is_compiling():  # compiled code does not update statistics twice
        return checkpoint(block, x, use_reentrant=False)
    contexts = (nullcontext(), FrozenStatistics(block))
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: contexts)
