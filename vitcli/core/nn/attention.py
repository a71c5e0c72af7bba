"""Self-attention: one shell, (B, N, D) -> (B, N, D), around interchangeable attend rules.

Axes: B batch, N tokens (prefix first), M keys, D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.spec import ModelSpec

CLAMP = (-1e9, 1e4)
Scale = float | Tensor


@dataclass(frozen=True, kw_only=True)
class TokenShape:
    """All that a layer may know about the sequence it will be given."""

    embed_dim: int
    grid_size: tuple[int, int]
    num_prefix_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]


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


class HeadDimScale(nn.Module):
    """1 / sqrt(d), which keeps the variance of the scores at that of queries and keys."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.scale = (embed_dim // num_heads) ** -0.5

    def forward(self) -> Scale:
        return self.scale


class EmbedDimScale(HeadDimScale):
    """1 / sqrt(D), as one source writes it; the same as 1 / sqrt(d) for a single head."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads=1)


class LearnedScale(nn.Module):
    """A temperature per head, learned as its logarithm from 1 / sqrt(d) on.

    Lee et al. 2021, https://arxiv.org/abs/2112.13492, which learns one per layer and masks the
    diagonal; here it is one per head, and nothing is masked.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        start = torch.tensor((embed_dim // num_heads) ** -0.5).log()
        self.temperature = nn.Parameter(start.repeat(num_heads)[:, None, None])  # (h, 1, 1)

    def forward(self) -> Scale:
        return self.temperature.exp()


SCALES: dict[str, Callable[[int, int], nn.Module]] = {
    "head_dim": HeadDimScale,
    "embed_dim": EmbedDimScale,
    "learned": LearnedScale,
}


class Position(nn.Module):
    """How positions enter attention; this one, not at all."""

    def forward(self, heads: Tensor) -> Tensor:
        """Turn q or k, (B, h, N, d) -> (B, h, N, d)."""
        return heads

    def bias(self) -> Tensor | None:
        """What to add to the scores, (1, h, N, N)."""
        return None


class Attend(nn.Module):
    """An attend rule maps q, k, v, each (B, h, N, d), to (B, h, N, d)."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, fused: bool
    ) -> Tensor:
        raise NotImplementedError

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """Return the weights (B, h, N, N) behind the output, for rules that have any."""
        raise NotImplementedError(f"{type(self).__name__} forms no attention matrix")


class Softmax(Attend):
    """Exact attention, O(N^2)."""

    def __init__(self, spec: ModelSpec, shape: TokenShape) -> None:
        super().__init__()
        self.scale = SCALES[spec.attn_scale](shape.embed_dim, spec.num_heads)
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


ATTENTIONS: dict[str, Callable[[ModelSpec, TokenShape], Attend]] = {"softmax": Softmax}


class SelfAttention(nn.Module):
    """Project to heads, attend, project back: (B, N, D) -> (B, N, D).

    Args:
        spec: Heads, biases, dropout, scale, attend rule.
        shape: Width and length of the sequence.
        position: How positions enter: turns q and k, or adds a bias to the scores.

    ``fused`` chooses torch's kernel or two plain matrix products; the result is the same.
    """

    def __init__(self, spec: ModelSpec, shape: TokenShape, position: Position) -> None:
        super().__init__()
        dim = shape.embed_dim
        if dim % spec.num_heads:
            raise ValueError(f"num_heads {spec.num_heads} does not divide embed_dim {dim}")
        self.num_heads = spec.num_heads
        self.num_tokens = shape.num_tokens
        self.fused = True
        self.qkv = nn.Linear(dim, 3 * dim, bias=spec.qkv_bias)
        self.position = position
        self.attend = ATTENTIONS[spec.attention](spec, shape)
        self.proj = nn.Linear(dim, dim, bias=spec.proj_bias) if spec.attn_proj else nn.Identity()
        self.proj_drop = nn.Dropout(spec.proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        out = self.attend(q, k, v, self.position.bias(), self.fused)  # (B, h, N, d)
        return self._merge_heads(out)

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
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> q, k, v, each (B, h, N, d), positions applied."""
        return self.split(self.qkv(x))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``heads`` returns, from the projection (B, N, 3 D)."""
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.position(q), self.position(k), v

    def attention_weights(self, x: Tensor) -> Tensor:
        """The weights (B, h, N, N) that ``forward`` applies without storing them."""
        q, k, _ = self.heads(x)
        return self.attend.weights(q, k, self.position.bias())
