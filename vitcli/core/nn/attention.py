"""Self-attention, (B, N, D) -> (B, N, D), with interchangeable attention rules.

Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.nn.attention_rule import AttentionRule, HeadDimScale, TokenShape
from vitcli.core.nn.inner import InnerLayer
from vitcli.core.nn.linear import Linear
from vitcli.core.nn.softmax import Softmax
from vitcli.core.ops.attention import merge_heads, split_heads
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.slots import ATTENTIONS


class Position(nn.Module):
    """Base class for positions inside attention. This class leaves attention unchanged."""

    def forward(self, heads: Tensor) -> Tensor:
        """Return q or k with positions applied: (B, h, N, d) -> (B, h, N, d)."""
        return heads

    def bias(self) -> Tensor | None:
        """Return the bias of the scores, (1, h, N, N), or None."""
        return None


class SelfAttention(InnerLayer):
    """Multi-head self-attention with input and output projections: (B, N, D) -> (B, N, D).

    Args:
        spec: Number of heads, biases, dropout, scale and attention rule.
        shape: Width and length of the sequence.
        position: Positions, which rotate q and k or add a bias to the scores.
        in_dim: Width of the input tokens; None means ``embed_dim``.

    If the attribute ``fused`` is true, torch's fused kernel computes attention; otherwise two plain
    matrix products do. Both compute the same function.
    """

    def __init__(
        self, spec: TokenSpec, shape: TokenShape, position: Position, in_dim: int | None = None
    ) -> None:
        super().__init__()
        dim = shape.embed_dim
        if dim % spec.num_heads:
            raise ValueError(f"num_heads {spec.num_heads} does not divide embed_dim {dim}")
        self.num_heads = spec.num_heads
        self.num_tokens = shape.num_tokens
        self.fused = True
        self.qkv = Linear(in_dim or dim, 3 * dim, bias=spec.qkv_bias)
        self.position = position
        self.attend: AttentionRule = make(ATTENTIONS[spec.attention_rule], spec, shape)
        self.proj = Linear(dim, dim, bias=spec.proj_bias) if spec.attn_proj else nn.Identity()
        self.proj_drop = nn.Dropout(spec.proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        qkv, scale = self.qkv(x), self.softmax_scale
        if scale is None:
            q, k, v = self.split(qkv)
            return self._merge_heads(self.attend(q, k, v, self.position.bias(), self.fused))
        turn = None if type(self.position) is Position else self.position
        out = self.backend.attention(qkv, self.num_heads, scale, turn, self.fused)
        return self.proj_drop(self.proj(out))

    @property
    def softmax_scale(self) -> float | None:
        """Return the scale if attention is exactly softmax(scale q k^T) v, otherwise None.

        Backends compute only this form: without bias, mask, clamp, dropout of the weights or
        learned scale.
        """
        rule, has_bias = self.attend, type(self.position).bias is not Position.bias
        is_global = type(self).split is SelfAttention.split
        if type(rule) is not Softmax or rule.clamp or rule.dropout or rule.masks_diagonal:
            return None
        if has_bias or not is_global:
            return None
        return rule.scale() if isinstance(rule.scale, HeadDimScale) else None

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        if self.softmax_scale is None:
            return {}
        width = self.qkv.out_features // 3
        whole = {"attention_branch": (width,)} if self.is_plain else {}
        return {"attention": (self.num_tokens, self.num_heads, width), **whole}

    @property
    def is_plain(self) -> bool:
        """Return whether this layer is softmax attention between two projections, without turns."""
        return (
            type(self) is SelfAttention
            and type(self.position) is Position
            and isinstance(self.proj, Linear)
        )

    @property
    def last(self) -> nn.Module:
        return self.proj_drop

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        scale = self.softmax_scale
        if scale is None or not (self.is_plain and isinstance(self.proj, Linear)):
            return None
        sizes = self.num_heads, scale, adds, num_queries
        out = self.backend.attention_branch(x, norm, self.qkv, self.proj, *sizes)
        return out if out is None or adds else self.proj_drop(out)

    def forward_first(self, x: Tensor) -> Tensor:
        """Return ``forward(x)[:, :1]``, computed for one query only: (B, N, D) -> (B, 1, D)."""
        q, k, v = self.heads(x)
        bias = self.position.bias()
        if bias is not None:
            bias = bias[:, :, :1]
        return self._merge_heads(self.attend(q[:, :, :1], k, v, bias, self.fused))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, N, D) and its attention weights (B, h, N, N), without attn_drop.

        The output is computed from these weights, so autograd can differentiate it with respect to
        them.
        """
        q, k, v = self.heads(x)
        weights = self.attend.weights(q, k, self.position.bias())
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

    def attention_weights(self, x: Tensor) -> Tensor:
        """Return the weights (B, h, N, N), which ``forward`` applies but does not store."""
        q, k, _ = self.heads(x)
        return self.attend.weights(q, k, self.position.bias())
