"""Pooling of the tokens, and the MLP head.

Axes: B batch, N tokens (prefix first: CLS, registers), D embed_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention import TokenShape
from vitcli.core.ops.backend import Gelu, Linear


class Pool(nn.Module):
    """Base class of poolings: (B, N, D) -> (B, D)."""

    def weights(self, tokens: Tensor) -> Tensor:
        """Return the weight of each token in the output: (B, N, D) -> (B, N). Rows sum to 1."""
        raise NotImplementedError


class ClsPool(Pool):
    """Pooling by the CLS token, which is the first token: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]

    def weights(self, tokens: Tensor) -> Tensor:
        return torch.eye(tokens.shape[1])[:1].to(tokens).expand(len(tokens), -1)


class MeanPool(Pool):
    """Pooling by the mean of the patch tokens, without registers: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.first = shape.num_prefix_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.first :].mean(1)

    def weights(self, tokens: Tensor) -> Tensor:
        shares = F.pad(tokens.new_ones(tokens.shape[1] - self.first), (self.first, 0))
        return (shares / shares.sum()).expand(len(tokens), -1)


class SequencePool(MeanPool):
    """Pooling by softmax(x g)^T x of the patch tokens, with learned g: (B, N, D) -> (B, D).

    Hassani et al. 2021, https://arxiv.org/abs/2104.05704
    """

    def __init__(self, shape: TokenShape) -> None:
        super().__init__(shape)
        self.score = Linear(shape.embed_dim, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.first :]
        return (self._patch_weights(patches).mT @ patches).squeeze(1)

    def weights(self, tokens: Tensor) -> Tensor:
        return F.pad(self._patch_weights(tokens[:, self.first :]).squeeze(-1), (self.first, 0))

    def _patch_weights(self, patches: Tensor) -> Tensor:
        return self.score(patches).softmax(dim=1)  # (B, patches, 1)


def mlp_head(dim: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(Linear(dim, dim), Gelu(), Linear(dim, num_classes))
