"""The interface of attention rules, the shape of their tokens and their scales.

Axes: B batch, N tokens (prefix first), D embed_dim, h num_heads, d = D / h.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.ops.attention import Scale
from vitcli.core.spec.slots import ATTN_SCALES


@dataclass(frozen=True, kw_only=True)
class TokenShape:
    """Shape of a sequence of tokens. Layers are built from this shape."""

    embed_dim: int
    grid_size: tuple[int, int]
    num_prefix_tokens: int
    num_heads: int = 1

    @property
    def num_tokens(self) -> int:
        return self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


class HeadDimScale(nn.Module):
    """The scale 1 / sqrt(d).

    If the features of q and k are independent with mean 0 and variance 1, scores have variance 1.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.scale = (embed_dim // num_heads) ** -0.5

    def forward(self) -> Scale:
        return self.scale


class EmbedDimScale(HeadDimScale):
    """The scale 1 / sqrt(D) of the training notes. For a single head, it equals 1 / sqrt(d)."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads=1)


class LearnedScale(nn.Module):
    """A learned scale for each head. Its logarithm is the parameter and starts at ln(1 / sqrt(d)).

    Lee et al. 2021, https://arxiv.org/abs/2112.13492. The paper writes one temperature; the
    authors' code has one for each head, as here. Deviation: the authors learn the scale itself,
    which can change its sign; here it stays positive. ``attn_mask_diagonal`` is the other half of
    Locality Self-Attention.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        start = torch.tensor((embed_dim // num_heads) ** -0.5).log()
        self.temperature = nn.Parameter(start.repeat(num_heads)[:, None, None])  # (h, 1, 1)

    def forward(self) -> Scale:
        return self.temperature.exp()


def build_scale(name: str, shape: TokenShape) -> nn.Module:
    """Return the module that computes the scale of the scores, by its row of ``ATTN_SCALES``."""
    scale: nn.Module = make(ATTN_SCALES[name], shape.embed_dim, shape.num_heads)
    return scale


class AttentionRule(nn.Module):
    """Base class of attention rules: q, k and v, each (B, h, N, d) -> (B, h, N, d).

    Any module with such a ``forward`` can be a rule. This class adds what a rule may also do.
    """

    fused = True
    """Whether torch's fused kernel computes the rule, if there is one, or plain matrix products."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the attention weights (B, h, N, N) of the output.

        Raises:
            ValueError: The rule has no weights between tokens.
        """
        raise NotImplementedError

    def before_step(self, seed: int, step: int, index: int) -> None:
        """Update state of the rule, such as random features, before a training step (from 0).

        The new state must be a function of seed, step and the index of the layer, so that a resumed
        training gives bit-identical results. Only tensors in ``not_averaged`` may change.
        """


def before_step(model: nn.Module, seed: int, step: int) -> None:
    """Call ``before_step`` of every layer that has it, before a training step (from 0)."""
    layers = [module for module in model.modules() if hasattr(type(module), "before_step")]
    for index, layer in enumerate(layers):
        layer.before_step(seed, step, index)  # type: ignore[operator]
