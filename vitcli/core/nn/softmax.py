"""The rule of softmax attention. Axes: B batch, N tokens (prefix first), h num_heads, d = D / h."""

from torch import Tensor

from vitcli.core.nn.attention_rule import AttentionRule, TokenShape, build_scale
from vitcli.core.ops.attention import attention, attention_weights
from vitcli.core.spec import TokenSpec


class Softmax(AttentionRule):
    """Exact softmax attention, O(N^2)."""

    def __init__(self, spec: TokenSpec, shape: TokenShape) -> None:
        super().__init__()
        self.scale = build_scale(spec, shape)
        self.clamp = spec.attn_clamp
        self.dropout = spec.attn_drop

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, fused: bool
    ) -> Tensor:
        return attention(
            query,
            key,
            value,
            scale=self.scale(),
            bias=bias,
            clamp=self.clamp,
            dropout=self.dropout if self.training else 0.0,
            fused=fused,
        )

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        return attention_weights(query, key, scale=self.scale(), bias=bias, clamp=self.clamp)
