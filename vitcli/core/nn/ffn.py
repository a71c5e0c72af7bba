"""Feed-forward networks that act on each token alone: (B, N, D) -> (B, N, D).

Axes: B batch, N tokens, D embed_dim.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.linear import Gelu, Linear
from vitcli.core.ops.branch import InnerLayer


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

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"ffn_branch": (self.fc1.in_features, self.fc1.out_features)}

    @property
    def last(self) -> nn.Module:
        return self.drop2

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        drops = self.training and self.drop1.p > 0
        if type(self.act) is not Gelu or drops:
            return None
        out = self.backend.ffn_branch(x[:, :num_queries], norm, self.fc1, self.fc2, adds)
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
    """Return an ``Mlp`` with ReLU instead of GELU."""
    return Mlp(shape, act=nn.ReLU, **options)
