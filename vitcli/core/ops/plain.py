"""Plain definitions of the ops in torch, for any device. Every backend must compute the same.

Attention is softmax(scale q k^T) v, for separate q, k and v or for a fused projection.
Axes: B batch, N tokens (prefix first), M keys, D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Scale = float | Tensor
CLAMP = (-1e9, 1e4)
FUSED_BYTES = 16
"""On CUDA, torch has a fused kernel for a head if its features fill a multiple of 16 bytes."""


def attention_scores(query: Tensor, key: Tensor, scale: Scale, clamp: bool = False) -> Tensor:
    """Return (query * scale) key^T: (B, h, N, d), (B, h, M, d) -> (B, h, N, M).

    ``clamp`` limits scores to [-1e9, 1e4], as the course report does "to prevent overflow". It is
    off by default, because softmax subtracts the maximum anyway. The clamp also makes large scores
    equal (20,000 and 15,000 get the same weight) and stops their gradients. If a data type has a
    smaller range, the limits are those of the type (such as fp16 for -1e9).
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
    """Return softmax(scale q k^T + bias) over the keys: (B, h, N, M). Rows sum to 1.

    Args:
        mask: Boolean, broadcast to (B, h, N, M). True allows attention.
        bias: Added to the scores, broadcast to (B, h, N, M).

    Raises:
        ValueError: A row of the mask is all False, so it has no softmax.
    """
    scores = attention_scores(query, key, scale, clamp)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~check_mask(mask), float("-inf"))
    return scores.softmax(dim=-1)


def check_mask(mask: Tensor) -> Tensor:
    """Return the mask unchanged.

    Raises:
        ValueError: A row is all False, so its query may attend to no key.
    """
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
    """Return softmax(scale q k^T) v: (B, h, N, d), (B, h, M, d), (B, h, M, d) -> (B, h, N, d).

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Queries and keys may come from different
    sequences (cross-attention). ``scale`` is 1 / sqrt(d) by default. ``fused`` uses torch's kernel,
    which never stores the weights. ``clamp`` disables ``fused``.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if fused and not clamp:
        # torch's argument ``scale`` has no gradient, which a learned scale needs
        allowed = bias if mask is None else check_mask(mask)
        if mask is not None and bias is not None:
            allowed = bias.masked_fill(~mask, float("-inf"))
        if allowed is not None and allowed.is_floating_point():
            allowed = allowed.to(query.dtype)
        multiple = FUSED_BYTES // value.element_size() if value.is_cuda else 1
        return fused_attention(query * scale, key, value, allowed, dropout, multiple)
    weights = attention_weights(query, key, scale=scale, mask=mask, bias=bias, clamp=clamp)
    return F.dropout(weights, dropout) @ value


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, multiple: int
) -> Tensor:
    """Return softmax(q k^T) v from torch's fused kernel, with the shapes of ``attention``.

    If the width of a head is not a multiple of ``multiple``, zeros are appended to q, k and v, and
    cut off from the result. They change neither the scores nor the other features.
    """
    width = value.shape[-1]
    missing = -width % multiple
    if missing:
        query, key, value = (F.pad(part, (0, missing)) for part in (query, key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=1.0
    )
    return out[..., :width] if missing else out


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of all heads: (B, N, 3 D) -> three times (B, h, N, d)."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def merge_heads(out: Tensor) -> Tensor:
    """Return the concatenated heads: (B, h, N, d) -> (B, N, D)."""
    return out.transpose(1, 2).flatten(2)


def self_attention(
    qkv: Tensor,
    num_heads: int,
    scale: float,
    turn: Callable[[Tensor], Tensor] | None = None,
    fused: bool = True,
) -> Tensor:
    """Return softmax(scale q k^T) v of all heads: (B, N, 3 D) -> (B, N, D).

    Args:
        qkv: The output of the fused projection.
        turn: Function applied to q and to k, each (B, h, N, d), such as a rotary embedding.
        fused: Whether to use torch's kernel, as in ``attention``.
    """
    q, k, v = split_heads(qkv, num_heads)
    if turn is not None:
        q, k = turn(q), turn(k)
    return merge_heads(attention(q, k, v, scale=scale, fused=fused))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x w^T + b: x (..., in), w (out, in), b (out,) -> (..., out)."""
    return F.linear(x, weight, bias)


def gelu(x: Tensor) -> Tensor:
    """Return x Phi(x) for any shape, where Phi is the standard normal distribution function."""
    return F.gelu(x)


def add_norm(
    x: Tensor, branch: Tensor | None, norm: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return (x + branch, norm(x + branch)), each (..., D); without a branch (x, norm(x))."""
    total = x if branch is None else x + branch
    return total, norm(total)
