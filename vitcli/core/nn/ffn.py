"""Feed-forward networks: (B, N, D) -> (B, N, D).

Axes: B batch, N tokens (prefix first, then the patches in reading order), D embed_dim.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.mbconv import DepthwiseConv
from vitcli.core.ops.backend import Gelu, InnerLayer, Linear, are_unchanged


class Mlp(InnerLayer):
    """Two linear layers, act(x W1 + b1) W2 + b2. Dropout follows the activation and the output."""

    def __init__(
        self,
        shape: TokenShape,
        *,
        hidden_dim: int,
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = Gelu,
    ) -> None:
        super().__init__()
        self.fc1 = Linear(shape.embed_dim, hidden_dim)
        self.act = act()
        self.drop1 = nn.Dropout(dropout)
        self.fc2 = Linear(hidden_dim, shape.embed_dim)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act(self.fc1(x)))  # (B, N, hidden)
        return self.drop2(self.fc2(x))

    @property
    def last(self) -> nn.Module:
        return self.drop2

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        branch, drops = self.backend.ffn_branch, self.training and self.drop1.p > 0
        if branch is None or type(self) is not Mlp or type(self.act) is not Gelu or drops:
            return None
        if not are_unchanged(self, self.fc1, self.act, self.fc2):
            return None
        out = branch(x[:, :num_queries], norm, self.fc1, self.fc2, adds)
        return out if out is None or adds else self.drop2(out)


class SwiGlu(nn.Module):
    """A gated linear unit, (silu(x W) * x V) W2, with biases.

    Shazeer 2020, https://arxiv.org/abs/2002.05202. Deviation: the hidden width is used as given.
    The paper takes 2/3 of it to keep the number of parameters.
    """

    def __init__(self, shape: TokenShape, *, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = Linear(shape.embed_dim, 2 * hidden_dim)
        self.drop1 = nn.Dropout(dropout)
        self.fc2 = Linear(hidden_dim, shape.embed_dim)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # each (B, N, hidden)
        return self.drop2(self.fc2(self.drop1(F.silu(gate) * value)))


def relu_mlp(shape: TokenShape, **options: Any) -> Mlp:
    return Mlp(shape, act=nn.ReLU, **options)


class DepthwiseMlp(nn.Module):
    """Two linear layers and a 3x3 depthwise convolution of the hidden features between them.

    h = gelu(x W1 + b1) for each token, h + gelu(conv(h)) for each patch, h W2 + b2 for each token.
    The convolution pads the grid with zeros. Prefix tokens (CLS, registers) skip it. Dropout
    precedes and follows the second linear layer.

    The feed-forward network of DHVT, Lu et al. 2022, https://arxiv.org/abs/2210.05958, with the
    inner shortcut of the authors' code. Deviations: the paper normalises with BatchNorm after each
    of the three layers, and multiplies CLS by a function of the mean patch instead of passing it
    through the linear layers. Here nothing is normalised inside, so an image does not depend on its
    batch, and CLS passes through both linear layers, so CLS does not depend on the patches here.
    The last convolution therefore has no gradient in a model that reads only CLS.
    """

    def __init__(self, shape: TokenShape, *, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_prefix = shape.num_prefix_tokens
        self.fc1 = Linear(shape.embed_dim, hidden_dim)
        self.act1, self.act2 = Gelu(), Gelu()
        self.filters = DepthwiseConv(hidden_dim, hidden_dim, shape.grid_size, stride=1, bias=True)
        self.drop1 = nn.Dropout(dropout)
        self.fc2 = Linear(hidden_dim, shape.embed_dim)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of all tokens, or of the prefix alone if x has no patches."""
        hidden = self.act1(self.fc1(x))  # (B, N, hidden)
        prefix, patches = hidden[:, : self.num_prefix], hidden[:, self.num_prefix :]
        if patches.shape[1]:
            patches = patches + self.act2(self.filters(patches))
            hidden = torch.cat([prefix, patches], dim=1) if self.num_prefix else patches
        return self.drop2(self.fc2(self.drop1(hidden)))
