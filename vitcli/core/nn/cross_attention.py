"""Attention with queries from one sequence and keys and values from another.

Axes: B batch, N M tokens, D embed_dim, h num_heads, d = D / h.
"""

from torch import Tensor, nn

from vitcli.core.nn.linear import Linear
from vitcli.core.ops.attention import attention, attention_weights, merge_heads


class CrossAttention(nn.Module):
    """Multi-head attention from tokens (B, N, D) to other tokens (B, M, D) -> (B, N, D).

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.3
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(dim, dim)
        self.key, self.value = Linear(dim, dim), Linear(dim, dim)
        self.proj = Linear(dim, dim)

    def forward(self, tokens: Tensor, others: Tensor) -> Tensor:
        query, key = self._heads(self.query(tokens)), self._heads(self.key(others))
        return self.proj(merge_heads(attention(query, key, self._heads(self.value(others)))))

    def weights(self, tokens: Tensor, others: Tensor) -> Tensor:
        """Return the attention weights (B, h, N, M), which ``forward`` does not store."""
        query, key = self._heads(self.query(tokens)), self._heads(self.key(others))
        return attention_weights(query, key, scale=query.shape[-1] ** -0.5)

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
