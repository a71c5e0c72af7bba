"""Self-attention: one shell, (B, N, D) -> (B, N, D), around interchangeable attend rules.

Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.nn.attention_rule import AttentionRule, HeadDimScale, TokenShape
from vitcli.core.nn.linear import Linear
from vitcli.core.nn.softmax import Softmax
from vitcli.core.ops.attention import merge_heads, split_heads
from vitcli.core.ops.backend import UsesBackend
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.slots import ATTENTIONS


class Position(nn.Module):
    """How positions enter attention; this one, not at all."""

    def forward(self, heads: Tensor) -> Tensor:
        """Turn q or k, (B, h, N, d) -> (B, h, N, d)."""
        return heads

    def bias(self) -> Tensor | None:
        """What to add to the scores, (1, h, N, N)."""
        return None


class SelfAttention(UsesBackend, nn.Module):
    """Project to heads, attend, project back: (B, N, D) -> (B, N, D).

    Args:
        spec: Heads, biases, dropout, scale, attend rule.
        shape: Width and length of the sequence.
        position: How positions enter: turns q and k, or adds a bias to the scores.
        in_dim: Width of the tokens that come in; ``embed_dim`` unless given.

    ``fused`` chooses torch's kernel or two plain matrix products; the result is the same.
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
        if scale is None:  # only the rule knows how the tokens attend
            q, k, v = self.split(qkv)
            return self._merge_heads(self.attend(q, k, v, self.position.bias(), self.fused))
        turn = None if type(self.position) is Position else self.position
        out = self.backend.attention(qkv, self.num_heads, scale, turn, self.fused)
        return self.proj_drop(self.proj(out))

    @property
    def softmax_scale(self) -> float | None:
        """The scale where attention is softmax(scale q k^T) v and nothing else; otherwise None.

        Backends compute only that: no bias, clamp or dropout of the scores, no learned scale.
        """
        rule, has_bias = self.attend, type(self.position).bias is not Position.bias
        if type(rule) is not Softmax or rule.clamp or rule.dropout or has_bias:
            return None
        return rule.scale() if isinstance(rule.scale, HeadDimScale) else None

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        if self.softmax_scale is None:
            return {}
        return {"attention": (self.num_tokens, self.num_heads, self.qkv.out_features // 3)}

    def forward_first(self, x: Tensor) -> Tensor:
        """``forward(x)[:, :1]``, where only the first token asks: (B, N, D) -> (B, 1, D)."""
        q, k, v = self.heads(x)
        bias = self.position.bias()
        if bias is not None:
            bias = bias[:, :, :1]
        return self._merge_heads(self.attend(q[:, :, :1], k, v, bias, self.fused))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``forward`` by the explicit path, no attention dropout, and its weights (B, h, N, N).

        The output is computed from these weights, so it can be differentiated by them.
        """
        q, k, v = self.heads(x)
        weights = self.attend.weights(q, k, self.position.bias())
        return self._merge_heads(weights @ v), weights

    def _merge_heads(self, out: Tensor) -> Tensor:
        return self.proj_drop(self.proj(merge_heads(out)))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> q, k, v, each (B, h, N, d), positions applied."""
        return self.split(self.qkv(x))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``heads`` returns, from the projection (B, N, 3 D)."""
        q, k, v = split_heads(qkv, self.num_heads)
        return self.position(q), self.position(k), v

    def attention_weights(self, x: Tensor) -> Tensor:
        """The weights (B, h, N, N) that ``forward`` applies without storing them."""
        q, k, _ = self.heads(x)
        return self.attend.weights(q, k, self.position.bias())
