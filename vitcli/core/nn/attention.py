"""Self-attention, (B, N, D) -> (B, N, D), with interchangeable attention rules and scales.

A rule computes the output of all heads from q, k and v. Softmax is the usual one.
Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.ops import backend
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import ATTN_SCALES

TOLERANCE = 1e-3
"""Largest difference of two computations of a share, or of an output as a share of its largest."""


@dataclass(frozen=True, kw_only=True)
class TokenShape:
    """Shape of a sequence of tokens. Layers are built from this shape."""

    embed_dim: int
    grid_size: tuple[int, int]
    num_prefix_tokens: int
    num_heads: int = 1

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


class HeadDimScale(nn.Module):
    """The scale 1 / sqrt(d): scores of independent q and k with variance 1 have variance 1."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.scale = (embed_dim // num_heads) ** -0.5

    def forward(self) -> backend.Scale:
        return self.scale


class EmbedDimScale(HeadDimScale):
    """The scale 1 / sqrt(D) of the training notes. For a single head, it equals 1 / sqrt(d)."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads=1)


class LearnedScale(nn.Module):
    """A learned scale for each head. Its logarithm is the parameter and starts at ln(1 / sqrt(d)).

    Lee et al. 2021, https://arxiv.org/abs/2112.13492. The paper writes one temperature; the
    authors' code has one for each head, as here. Deviation: the authors learn the scale itself,
    which can change its sign; here it stays positive. ``attn_mask_diagonal`` is the other half of
    Locality Self-Attention.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        start = torch.tensor((embed_dim // num_heads) ** -0.5).log()
        self.temperature = nn.Parameter(start.repeat(num_heads)[:, None, None])  # (h, 1, 1)

    def forward(self) -> backend.Scale:
        return self.temperature.exp()


class NoMapError(ValueError):
    """An own part states weights that are no shares, or that are not all that it computes."""


def check_shares(weights: Tensor, shape: tuple[int, ...], part: nn.Module) -> None:
    """Refuse weights of an own part that are no shares of this shape."""
    where = f"{type(part).__name__}.weights"
    if tuple(weights.shape) != shape:
        raise NoMapError(f"{where} returned the shape {tuple(weights.shape)}, needed {shape}")
    sums = weights.detach().sum(-1).flatten()
    if not torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE, rtol=0):
        farthest = sums[(sums - 1).abs().nan_to_num(torch.inf).argmax()].item()
        raise NoMapError(f"{where}: rows must sum to 1, and one sums to {farthest:.4g}")
    if weights.min() < -TOLERANCE:
        raise NoMapError(f"{where}: weights must not be negative, got {weights.min():.4g}")


def build_scale(name: str, shape: TokenShape) -> nn.Module:
    """Return the module that computes the scale of the scores, by its row of ``ATTN_SCALES``."""
    scale: nn.Module = make(ATTN_SCALES[name], shape.embed_dim, shape.num_heads)
    return scale


class AttentionRule(nn.Module):
    """Base class of attention rules: q, k and v, each (B, h, N, d) -> (B, h, N, d).

    Any module with such a ``forward`` can be a rule. This class adds what a rule may also do.
    """

    fused = True
    """Whether torch's fused kernel computes the rule, if there is one, or plain matrix products."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the attention weights (B, h, N, N) of the output."""
        raise NotImplementedError

    def before_step(self, seed: int, step: int, index: int) -> None:
        """Update state of the rule, such as random features, before a training step (from 0).

        The new state must be a function of seed, step and the index of the layer, so that a resumed
        training gives bit-identical results. Only tensors in ``not_averaged`` may change.
        """


def before_step(model: nn.Module, seed: int, step: int) -> None:
    """Call ``before_step`` of every layer that has it, before a training step (from 0)."""
    layers = [module for module in model.modules() if hasattr(type(module), "before_step")]
    for index, layer in enumerate(layers):
        layer.before_step(seed, step, index)  # type: ignore[operator]


class Position(nn.Module):
    """Base class for positions inside attention. This class leaves attention unchanged."""

    turns_heads = False
    """Whether ``forward`` changes q and k: True for a class that has its own."""
    biases_scores = False
    """Whether ``bias`` may return a bias: True for a class that has its own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.turns_heads = cls.turns_heads or cls.forward is not Position.forward
        cls.biases_scores = cls.biases_scores or cls.bias is not Position.bias

    def forward(self, heads: Tensor) -> Tensor:
        """Return q or k with positions applied: (B, h, N, d) -> (B, h, N, d)."""
        return heads

    def bias(self) -> Tensor | None:
        """Return the bias of the scores, (1, h, N, N), or None."""
        return None


class SelfAttention(backend.InnerLayer):
    """Multi-head self-attention with input and output projections: (B, N, D) -> (B, N, D).

    ``attend`` maps q, k and v, each (B, h, N, d), and perhaps a bias of the scores to (B, h, N, d).
    ``position`` rotates q and k or adds that bias. The input is ``in_dim`` wide, by default D.
    """

    attends_globally = True
    """Whether the rule sees all tokens of an image at once."""

    def __init__(
        self,
        shape: TokenShape,
        attend: nn.Module,
        position: Position | None = None,
        *,
        in_dim: int | None = None,
        qkv_bias: bool = True,
        has_proj: bool = True,
        proj_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        dim = shape.embed_dim
        if dim % shape.num_heads:
            raise ValueError(f"num_heads {shape.num_heads} does not divide embed_dim {dim}")
        self.num_heads = shape.num_heads
        self.num_tokens = shape.num_tokens
        self.qkv = backend.Linear(in_dim or dim, 3 * dim, bias=qkv_bias)
        self.position = Position() if position is None else position
        self.attend: Any = attend
        self.proj = backend.Linear(dim, dim, bias=proj_bias) if has_proj else nn.Identity()
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        qkv, scale = self.qkv(x), self.softmax_scale
        if scale is None:  # not exactly softmax: the rule computes it, otherwise the backend
            q, k, v = self.split(qkv)
            return self._merge_heads(self.attend(q, k, v, *self._bias()))
        turn = self.position if self.position.turns_heads else None
        out = self.backend.attention(qkv, self.num_heads, scale, turn, self.attend.fused)
        return self.proj_drop(self.proj(out))

    def _bias(self) -> tuple[Tensor, ...]:
        bias = self.position.bias()
        return () if bias is None else (bias,)

    @property
    def softmax_scale(self) -> float | None:
        """Return the scale if attention is exactly softmax(scale q k^T) v, otherwise None."""
        if self.position.biases_scores or not self.attends_globally:
            return None
        return self.attend.softmax_scale if isinstance(self.attend, Softmax) else None

    @property
    def last(self) -> nn.Module:
        return self.proj_drop

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        scale, branch = self.softmax_scale, self.backend.attention_branch
        if branch is None or scale is None or self.position.turns_heads:
            return None
        if not isinstance(self.proj, backend.Linear):
            return None
        if not backend.are_unchanged(self, self.qkv, self.attend, self.proj):
            return None
        out = branch(x, norm, self.qkv, self.proj, self.num_heads, scale, adds, num_queries)
        return out if out is None or adds else self.proj_drop(out)

    def forward_first(self, x: Tensor) -> Tensor:
        """Return ``forward(x)[:, :1]``, computed for one query only: (B, N, D) -> (B, 1, D)."""
        q, k, v = self.heads(x)
        bias = [each[:, :, :1] for each in self._bias()]
        return self._merge_heads(self.attend(q[:, :, :1], k, v, *bias))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, N, D) and its attention weights (B, h, N, N), without attn_drop.

        Autograd can differentiate the output with respect to the weights. An own rule may compute
        more than its weights say (``states_all``): the output is that of its ``forward``, and the
        gradient that of the weights.
        """
        q, k, v = self.heads(x)
        weights = self._weights(q, k)
        stated = weights @ v
        if not hasattr(self.attend, "own_part"):
            return self._merge_heads(stated), weights
        out = self.attend(q, k, v, *self._bias()).detach() + (stated - stated.detach())
        return self._merge_heads(out), weights

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        weights: Tensor = self.attend.weights(query, key, *self._bias())
        if hasattr(self.attend, "own_part"):
            check_shares(weights, (*query.shape[:3], key.shape[2]), self.attend)
        return weights

    def states_all(self, x: Tensor) -> bool:
        """Return whether the weights of the rule give its whole output for an input (B, N, D)."""
        q, k, v = self.heads(x)
        stated = self._weights(q, k) @ v
        out = self.attend(q, k, v, *self._bias())
        return torch.allclose(out, stated, rtol=0, atol=TOLERANCE * float(out.abs().max()))

    def _merge_heads(self, out: Tensor) -> Tensor:
        return self.proj_drop(self.proj(backend.merge_heads(out)))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v with positions applied: (B, N, D) -> three times (B, h, N, d)."""
        return self.split(self.qkv(x))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v with positions applied: (B, N, 3 D) -> three times (B, h, N, d)."""
        q, k, v = backend.split_heads(qkv, self.num_heads)
        return self.position(q), self.position(k), v


class Softmax(AttentionRule):
    """Exact softmax attention, O(N^2).

    ``masks_diagonal`` hides each token from itself, as in Locality Self-Attention: Lee et al. 2021,
    https://arxiv.org/abs/2112.13492. Deviation: the masked score is the smallest finite number
    instead of minus infinity. A token with others gets exactly the same weights, and a token that
    is alone attends to itself instead of to nothing.
    """

    def __init__(
        self,
        shape: TokenShape,
        *,
        scale: str = "head_dim",
        clamp: bool = False,
        dropout: float = 0.0,
        masks_diagonal: bool = False,
    ) -> None:
        super().__init__()
        self.scale = build_scale(scale, shape)
        self.clamp, self.dropout, self.masks_diagonal = clamp, dropout, masks_diagonal

    @property
    def softmax_scale(self) -> float | None:
        """Return the scale if the rule is exactly softmax(scale q k^T) v, otherwise None.

        Backends compute only this form: without mask, clamp, dropout of the weights or learned
        scale.
        """
        has_more = self.clamp or self.dropout or self.masks_diagonal
        if type(self) is not Softmax or has_more or not isinstance(self.scale, HeadDimScale):
            return None
        return self.scale.scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return backend.attention(
            query,
            key,
            value,
            scale=self.scale(),
            bias=self.mask(query, key, bias),
            clamp=self.clamp,
            dropout=self.dropout if self.training else 0.0,
            fused=self.fused,
        )

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
        bias = self.mask(query, key, bias)
        return backend.attention_weights(
            query, key, scale=self.scale(), bias=bias, clamp=self.clamp
        )

    def mask(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return the bias with the diagonal masked; the queries are the first N of the M tokens."""
        if not self.masks_diagonal:
            return bias
        rows, columns = (torch.arange(x.shape[2], device=x.device) for x in (query, key))
        scores = query.new_zeros(1, 1, len(rows), len(columns)) if bias is None else bias
        hidden = torch.finfo(query.dtype).min
        return scores.to(query.dtype).masked_fill(rows[:, None] == columns, hidden)
