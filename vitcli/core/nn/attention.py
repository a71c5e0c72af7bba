"""Self-attention, (B, N, D) -> (B, N, D), with interchangeable attention rules.

Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from typing import Any

from torch import Tensor, nn

from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.linear import Linear
from vitcli.core.ops.attention import merge_heads, split_heads
from vitcli.core.ops.branch import InnerLayer


class Position(nn.Module):
    """Base class for positions inside attention. This class leaves attention unchanged."""

    turns_heads = False
    """Whether ``forward`` changes q and k."""
    biases_scores = False
    """Whether ``bias`` may return a bias."""

    def forward(self, heads: Tensor) -> Tensor:
        """Return q or k with positions applied: (B, h, N, d) -> (B, h, N, d)."""
        return heads

    def bias(self) -> Tensor | None:
        """Return the bias of the scores, (1, h, N, N), or None."""
        return None


class SelfAttention(InnerLayer):
    """Multi-head self-attention with input and output projections: (B, N, D) -> (B, N, D).

    Args:
        shape: Width, heads and length of the sequence.
        attend: The attention rule: q, k and v, each (B, h, N, d) -> (B, h, N, d). With a bias of
            the scores, the bias is the fourth argument.
        position: Positions, which rotate q and k or add a bias to the scores; None means none.
        in_dim: Width of the input tokens; None means ``embed_dim``.
        qkv_bias: Whether the input projection has a bias.
        has_proj: Whether there is an output projection.
        proj_bias: Whether the output projection has a bias.
        dropout: Dropout rate of the output.
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
        self.qkv = Linear(in_dim or dim, 3 * dim, bias=qkv_bias)
        self.position = Position() if position is None else position
        self.attend: Any = attend
        self.proj = Linear(dim, dim, bias=proj_bias) if has_proj else nn.Identity()
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        qkv, scale = self.qkv(x), self.softmax_scale
        if scale is None:
            q, k, v = self.split(qkv)
            return self._merge_heads(self.attend(q, k, v, *self._bias()))
        turn = self.position if self.position.turns_heads else None
        out = self.backend.attention(qkv, self.num_heads, scale, turn, self.attend.fused)
        return self.proj_drop(self.proj(out))

    def _bias(self) -> tuple[Tensor, ...]:
        """Return the bias of the scores as the last argument of the rule, if there is a bias."""
        bias = self.position.bias()
        return () if bias is None else (bias,)

    @property
    def softmax_scale(self) -> float | None:
        """Return the scale if attention is exactly softmax(scale q k^T) v, otherwise None."""
        if self.position.biases_scores or not self.attends_globally:
            return None
        scale: float | None = getattr(self.attend, "softmax_scale", None)
        return scale

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        if self.softmax_scale is None:
            return {}
        width = self.qkv.out_features // 3
        whole = {} if self.position.turns_heads else {"attention_branch": (width,)}
        return {"attention": (self.num_tokens, self.num_heads, width), **whole}

    @property
    def last(self) -> nn.Module:
        return self.proj_drop

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        scale = self.softmax_scale
        if scale is None or self.position.turns_heads or not isinstance(self.proj, Linear):
            return None
        sizes = self.num_heads, scale, adds, num_queries
        out = self.backend.attention_branch(x, norm, self.qkv, self.proj, *sizes)
        return out if out is None or adds else self.proj_drop(out)

    def forward_first(self, x: Tensor) -> Tensor:
        """Return ``forward(x)[:, :1]``, computed for one query only: (B, N, D) -> (B, 1, D)."""
        q, k, v = self.heads(x)
        bias = [each[:, :, :1] for each in self._bias()]
        return self._merge_heads(self.attend(q[:, :, :1], k, v, *bias))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, N, D) and its attention weights (B, h, N, N), without attn_drop.

        The output is computed from these weights, so autograd can differentiate it with respect to
        them.
        """
        q, k, v = self.heads(x)
        weights = self.attend.weights(q, k, *self._bias())
        return self._merge_heads(weights @ v), weights

    def _merge_heads(self, out: Tensor) -> Tensor:
        return self.proj_drop(self.proj(merge_heads(out)))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v with positions applied: (B, N, D) -> three times (B, h, N, d)."""
        return self.split(self.qkv(x))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v with positions applied: (B, N, 3 D) -> three times (B, h, N, d)."""
        q, k, v = split_heads(qkv, self.num_heads)
        return self.position(q), self.position(k), v
