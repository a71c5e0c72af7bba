"""From tokens to logits: the read-out, and the head after it.

Axes: B batch, N tokens (prefix first: CLS, registers), D embed_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.linear import Gelu, Linear


class Pool(nn.Module):
    """Reads tokens out: (B, N, D) -> (B, D)."""

    def weights(self, tokens: Tensor) -> Tensor:
        """How much of each token is read out: (B, N, D) -> (B, N), rows sum to 1."""
        raise NotImplementedError


class ClsPool(Pool):
    """The CLS token, the first one: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]

    def weights(self, tokens: Tensor) -> Tensor:
        return torch.eye(tokens.shape[1])[:1].to(tokens).expand(len(tokens), -1)


class MeanPool(Pool):
    """The mean of the patch tokens; registers are left out: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.first = shape.num_prefix_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.first :].mean(1)

    def weights(self, tokens: Tensor) -> Tensor:
        shares = F.pad(tokens.new_ones(tokens.shape[1] - self.first), (self.first, 0))
        return (shares / shares.sum()).expand(len(tokens), -1)


class SequencePool(MeanPool):
    """softmax(x g)^T x over the patch tokens, g learned: (B, N, D) -> (B, D).

    Hassani et al. 2021, https://arxiv.org/abs/2104.05704
    """

    def __init__(self, shape: TokenShape) -> None:
        super().__init__(shape)
        self.score = Linear(shape.embed_dim, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.first :]
        return (self._shares(patches).mT @ patches).squeeze(1)

    def weights(self, tokens: Tensor) -> Tensor:
        return F.pad(self._shares(tokens[:, self.first :]).squeeze(-1), (self.first, 0))

    def _shares(self, patches: Tensor) -> Tensor:
        return self.score(patches).softmax(dim=1)  # (B, patches, 1)


def mlp_head(dim: int, num_classes: int) -> nn.Sequential:
    """One hidden layer of the tokens' width."""
    return nn.Sequential(Linear(dim, dim), Gelu(), Linear(dim, num_classes))
