"""Linformer: attention with keys and values projected along the sequence.

Axes: B batch, N tokens, h num_heads, d width of a head, r rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.softmax import Softmax
from vitcli.core.spec.slots import LINFORMER_SHARES


class Linformer(Softmax):
    """softmax(scale q (E k)^T) F v with learned projections E and F of shape (r, N), O(N r).

    Wang et al. 2020, https://arxiv.org/abs/2006.04768. ``share`` chooses the shared
    projections. With ``heads`` all heads of a layer share one E and one F. With ``none`` each head
    has its own E and F. With ``kv`` E = F for all heads. The shape of E and F fixes the length of
    the sequence. Deviations: layers do not share projections. E and F start as means over r groups
    of neighbouring tokens, because Gaussian noise does not approximate attention.
    """

    def __init__(
        self, shape: TokenShape, *, rank: int, share: str = "heads", **options: Any
    ) -> None:
        super().__init__(shape, **options)
        rank, shared = min(rank, shape.num_tokens), LINFORMER_SHARES[share]
        self.heads = shape.num_heads if shared.per_head else 1
        start = segment_means(rank, shape.num_tokens).repeat(self.heads, 1)  # ([h] r, N)
        self.key_proj = nn.Parameter(start.clone())
        self.value_proj = nn.Parameter(start.clone()) if shared.matrices == 2 else None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        value_proj = self.key_proj if self.value_proj is None else self.value_proj
        projected = self.project(self.key_proj, key), self.project(value_proj, value)
        return super().forward(query, *projected)

    def project(self, matrix: Tensor, tokens: Tensor) -> Tensor:
        """Return mixed tokens, (B, h, N, d) -> (B, h, r, d); the matrix is (r, N) or (h r, N)."""
        return (matrix if self.heads == 1 else matrix.unflatten(0, (self.heads, -1))) @ tokens

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
        raise ValueError(
            "attention 'linformer' gives weights to mixtures of all tokens, so no token has one;"
            " the method gradcam needs none"
        )


def segment_means(rank: int, length: int) -> Tensor:
    """Return a matrix (rank, length) whose rows average disjoint groups of neighbouring tokens."""
    group = torch.arange(length) * rank // length
    members = F.one_hot(group, rank).T.float()
    return members / members.sum(dim=1, keepdim=True)
