"""What every attention rule is made of: the shape of its tokens, its scale, its interface.

Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.ops.attention import Scale
from vitcli.core.spec import TokenSpec
from vitcli.core.spec.slots import ATTN_SCALES


@dataclass(frozen=True, kw_only=True)
class TokenShape:
    """All that a layer may know about the sequence it will be given."""

    embed_dim: int
    grid_size: tuple[int, int]
    num_prefix_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]


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


def build_scale(spec: TokenSpec, shape: TokenShape) -> nn.Module:
    """Return what gives the factor of the scores."""
    scale: nn.Module = make(ATTN_SCALES[spec.score_scale], shape.embed_dim, spec.num_heads)
    return scale


class AttentionRule(nn.Module):
    """An attend rule maps q, k, v, each (B, h, N, d), to (B, h, N, d)."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, fused: bool
    ) -> Tensor:
        raise NotImplementedError

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """Return the weights (B, h, N, N) behind the output; ValueError where there are none."""
        raise NotImplementedError

    def after_step(self, seed: int, step: int, index: int) -> None:
        """Change what a training step (from 0) leaves to the rule, such as random features.

        It must be a function of seed, step and the layer's index, so that a resumed training does
        the same.
        """


def after_step(model: nn.Module, seed: int, step: int) -> None:
    """Let every attention of a model do what is due after a training step (from 0)."""
    rules = [module for module in model.modules() if isinstance(module, AttentionRule)]
    for index, rule in enumerate(rules):
        rule.after_step(seed, step, index)
