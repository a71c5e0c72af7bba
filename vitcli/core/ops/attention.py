"""Attention: softmax(scale q k^T) v, of any queries to any keys and of a fused projection.

Axes: B batch, N tokens (prefix first), M keys, D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Scale = float | Tensor
CLAMP = (-1e9, 1e4)


def attention_scores(query: Tensor, key: Tensor, scale: Scale, clamp: bool = False) -> Tensor:
    """(query * scale) key^T: (B, h, N, d), (B, h, M, d) -> (B, h, N, M).

    ``clamp`` limits scores to [-1e9, 1e4] as the report does "to prevent overflow". It is off by
    default: softmax subtracts the maximum anyway, while the clamp turns large scores into ties
    (20,000 and 15,000 get equal weight) and stops their gradients. Bounds that the type cannot
    hold (-1e9 in fp16) become its own.
    """
    scores = (query * scale) @ key.mT
    if not clamp:
        return scores
    finite = torch.finfo(scores.dtype)
    return scores.clamp(max(CLAMP[0], finite.min), min(CLAMP[1], finite.max))


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    scale: Scale,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    clamp: bool = False,
) -> Tensor:
    """softmax(scale q k^T + bias), rows over keys: -> (B, h, N, M); a row sums to 1.

    Args:
        mask: Boolean, broadcast to (B, h, N, M); True may be attended to.
        bias: Added to the scores, broadcast likewise.

    Raises:
        ValueError: A row of the mask is all False; it has no softmax.
    """
    scores = attention_scores(query, key, scale, clamp)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~checked(mask), float("-inf"))
    return scores.softmax(dim=-1)


def checked(mask: Tensor) -> Tensor:
    """The mask, after making sure that every query may attend to something."""
    if not mask.any(dim=-1).all():
        raise ValueError(
            "a row of the attention mask is all False: that query may attend to nothing"
        )
    return mask


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: Scale | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    clamp: bool = False,
    dropout: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Scaled dot-product attention of any queries to any keys and values.

    softmax(q k^T / sqrt(d)) v: (B, h, N, d), (B, h, M, d), (B, h, M, d) -> (B, h, N, d).
    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. The three may differ (cross-attention).
    ``fused`` takes torch's kernel, which never stores the weights; clamping needs the other path.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if fused and not clamp:
        # scaling the query outside lets a learned temperature have a gradient
        allowed = bias if mask is None else checked(mask)
        if mask is not None and bias is not None:
            allowed = bias.masked_fill(~mask, float("-inf"))
        if allowed is not None and allowed.is_floating_point():
            allowed = allowed.to(query.dtype)
        return F.scaled_dot_product_attention(
            query * scale, key, value, attn_mask=allowed, dropout_p=dropout, scale=1.0
        )
    weights = attention_weights(query, key, scale=scale, mask=mask, bias=bias, clamp=clamp)
    return F.dropout(weights, dropout) @ value


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, 3 D) -> q, k, v, each (B, h, N, d)."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def merge_heads(out: Tensor) -> Tensor:
    """(B, h, N, d) -> (B, N, D)."""
    return out.transpose(1, 2).flatten(2)


def self_attention(
    qkv: Tensor,
    num_heads: int,
    scale: float,
    turn: Callable[[Tensor], Tensor] | None = None,
    fused: bool = True,
) -> Tensor:
    """softmax(scale q k^T) v of all heads, from the fused projection: (B, N, 3 D) -> (B, N, D).

    Args:
        turn: Applied to q and to k, each (B, h, N, d), as rotary positions are.
        fused: As in ``attention``.
    """
    q, k, v = split_heads(qkv, num_heads)
    if turn is not None:
        q, k = turn(q), turn(k)
    return merge_heads(attention(q, k, v, scale=scale, fused=fused))
