"""The rule of softmax attention. Axes: B batch, N tokens (prefix first), h num_heads, d = D / h."""

import torch
from torch import Tensor

from vitcli.core.nn.attention_rule import AttentionRule, HeadDimScale, TokenShape, build_scale
from vitcli.core.ops.attention import attention, attention_weights


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
        return attention(
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
        return attention_weights(query, key, scale=self.scale(), bias=bias, clamp=self.clamp)

    def mask(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return the bias of the scores, broadcast to (B, h, N, M), with the diagonal masked.

        The queries are the first N of the M tokens.
        """
        if not self.masks_diagonal:
            return bias
        rows, columns = (torch.arange(x.shape[2], device=x.device) for x in (query, key))
        scores = query.new_zeros(1, 1, len(rows), len(columns)) if bias is None else bias
        hidden = torch.finfo(query.dtype).min
        return scores.to(query.dtype).masked_fill(rows[:, None] == columns, hidden)
