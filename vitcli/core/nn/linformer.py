"""Linformer: keys and values projected along the sequence. Axes as in attention.py, r rank."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention_rule import AttentionRule, TokenShape, build_scale
from vitcli.core.ops.attention import attention, attention_weights
from vitcli.core.spec import AttentionSpec
from vitcli.core.spec.slots import LINFORMER_SHARES


class Linformer(AttentionRule):
    """softmax(q (E k)^T) F v with learned E, F of shape (r, N): O(N r).

    Wang et al. 2020, https://arxiv.org/abs/2006.04768. ``linformer_share``: ``heads`` has one E and
    one F for all heads of a layer, ``none`` one for each head, ``kv`` a single matrix for keys and
    values of all heads. (The paper's sharing over layers is not built.) The sequence's length is
    part of the weights. Deviation: E and F start as means over r neighbouring groups of tokens, not
    as Gaussian noise, which is no approximation of attention at all.
    """

    def __init__(self, spec: AttentionSpec, shape: TokenShape) -> None:
        super().__init__()
        self.scale = build_scale(spec, shape)
        self.clamp, self.dropout = spec.attn_clamp, spec.attn_drop
        rank = min(spec.linformer_rank, shape.num_tokens)
        share = LINFORMER_SHARES[spec.linformer_share]
        self.heads = spec.num_heads if share.per_head else 1
        start = segment_means(rank, shape.num_tokens).repeat(self.heads, 1)  # ([h] r, N)
        self.key_proj = nn.Parameter(start.clone())
        self.value_proj = nn.Parameter(start.clone()) if share.matrices == 2 else None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, fused: bool
    ) -> Tensor:
        value_proj = self.key_proj if self.value_proj is None else self.value_proj
        return attention(
            query,
            self.project(self.key_proj, key),
            self.project(value_proj, value),
            scale=self.scale(),
            clamp=self.clamp,
            dropout=self.dropout if self.training else 0.0,
            fused=fused,
        )

    def project(self, matrix: Tensor, tokens: Tensor) -> Tensor:
        """Mix tokens, (B, h, N, d) -> (B, h, r, d), by one matrix (r, N) or one a head, stacked."""
        return (matrix if self.heads == 1 else matrix.unflatten(0, (self.heads, -1))) @ tokens

    def projected_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The softmax over projected keys, (B, h, N, r); none of them is a token."""
        scale = self.scale()
        key = self.project(self.key_proj, key)
        return attention_weights(query, key, scale=scale, clamp=self.clamp)

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        raise ValueError(
            "attention 'linformer' gives weights to mixtures of all tokens, so no token has one;"
            " the method gradcam needs none"
        )


def segment_means(rank: int, length: int) -> Tensor:
    """(rank, length): each row is the mean over a group of neighbours; every token is in one."""
    group = torch.arange(length) * rank // length
    members = F.one_hot(group, rank).T.float()
    return members / members.sum(dim=1, keepdim=True)
