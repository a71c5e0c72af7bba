"""Attention whose cost grows linearly with the number of tokens: kernels, and Linformer.

Weights that are a product of features need no N x M matrix. Linformer projects keys and values
along the sequence.

Axes: B batch, h heads, N queries, M keys, d width of a head, m features, r rank.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention import AttentionRule, Softmax, TokenShape, build_scale
from vitcli.core.ops.backend import Scale
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec.slots import LINFORMER_SHARES
from vitcli.core.torch_use import without_autocast

TINY = 1e-12
"""Minimum of the denominator. A query with weight 0 for all keys gets zeros instead of 0 / 0."""


def attend_by_features(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return D^-1 phi(q) (phi(k)^T v) with D = phi(q) sum(phi(k)), at a cost of O((N + M) m d).

    Features, not negative, and values: (B, h, N, m), (B, h, M, m), (B, h, M, d) -> (B, h, N, d).
    """
    seen = query @ (key.mT @ value)
    total = query @ key.sum(dim=-2)[..., None]  # (B, h, N, 1)
    return seen / total.clamp(min=TINY)


class FeatureAttention(AttentionRule):
    """Attention with a feature map. It is computed in fp32, because it sums over all keys."""

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return non-negative features: (.., N, d), (.., M, d) -> (.., N, m), (.., M, m)."""
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with without_autocast(query.device):
            phi_q, phi_k = self.features(query.float(), key.float())
            return attend_by_features(phi_q, phi_k, value.float()).to(value.dtype)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the weights (B, h, N, M), which ``forward`` applies but never computes."""
        with without_autocast(query.device):
            phi_q, phi_k = self.features(query.float(), key.float())
            weights = phi_q @ phi_k.mT
            return weights / weights.sum(dim=-1, keepdim=True).clamp(min=TINY)


class LinearAttention(FeatureAttention):
    """Linear attention with phi(x) = elu(x) + 1, O(N d^2).

    Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236. The rule has no scale.
    """

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return F.elu(query) + 1, F.elu(key) + 1


class Performer(FeatureAttention):
    """FAVOR+: positive orthogonal random features of the softmax kernel, O(N m d).

    Choromanski et al. 2021, https://arxiv.org/abs/2009.14794. The feature map is
    phi(x) = exp(W x - |x|^2 / 2) / sqrt(m), where x is q sqrt(scale) or k sqrt(scale). The expected
    product of the features of q and k is then exp(scale q k). Each query's largest exponent is
    subtracted from the exponents of the query. The largest exponent of all keys is subtracted from
    the exponents of all keys. Both subtractions cancel in the weights. New features W are drawn
    every ``redraw_every`` training steps; a checkpoint stores them. The estimate is
    good only for small |x|, because its variance grows exponentially in |x|.
    """

    projection: Tensor
    not_averaged = ("projection",)
    """Names of the buffers that weight averaging copies instead of averaging them."""

    def __init__(
        self,
        shape: TokenShape,
        *,
        num_features: int | None = None,
        redraw_every: int = 1000,
        scale: str = "head_dim",
    ) -> None:
        super().__init__()
        dim = shape.head_dim
        self.scale = build_scale(scale, shape)
        self.redraw_every = redraw_every
        count = num_features or max(1, round(dim * math.log(dim)))
        self.register_buffer("projection", torch.zeros(count, dim))

    def init_weights(self, draws: Draws) -> None:
        self.redraw(draws("projection"))

    def before_step(self, seed: int, step: int, index: int) -> None:
        if step and step % self.redraw_every == 0:
            self.redraw(keyed_generator("redraw", seed, step - 1, index))

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale()
        log_q, log_k = (log_features(x, self.projection, scale) for x in (query, key))
        phi_q = (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp()
        phi_k = (log_k - log_k.detach().amax(dim=(-2, -1), keepdim=True)).exp()
        return phi_q, phi_k

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        drawn = orthogonal_features(*self.projection.shape, generator=generator)
        if self.projection.is_cuda:  # the host does not wait for a copy from pinned memory
            drawn = drawn.pin_memory()
        self.projection.copy_(drawn, non_blocking=True)


def log_features(x: Tensor, projection: Tensor, scale: Scale) -> Tensor:
    """Return W y - |y|^2 / 2 with y = x sqrt(scale): (B, h, N, d) -> (B, h, N, m)."""
    root = scale.sqrt() if isinstance(scale, Tensor) else math.sqrt(scale)
    x = x * root
    return x @ projection.mT.to(x.dtype) - x.square().sum(dim=-1, keepdim=True) / 2


def orthogonal_features(
    count: int, dim: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Return random rows, (count, dim). Within each block of ``dim`` rows, rows are orthogonal.

    Each row has the length of a random Gaussian vector.
    """
    blocks = -(-count // dim)
    gaussian = torch.randn(blocks, dim, dim, generator=generator)
    q, r = torch.linalg.qr(gaussian)
    signs = r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without signs, features are biased
    directions = (q * signs).mT.flatten(0, 1)[:count]
    lengths = torch.randn(count, dim, generator=generator).norm(dim=1, keepdim=True)
    return directions * lengths


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
