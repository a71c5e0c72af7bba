"""Layers of torch whose arithmetic the model's backend computes; otherwise torch's own.

Parameters, their names and their initial values are those of torch's classes.
"""

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import UsesBackend


class Linear(UsesBackend, nn.Linear):
    """x W^T + b: (..., in) -> (..., out)."""

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.out_features, self.in_features)}

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.linear(x, self.weight, self.bias)


def backed(layer: nn.Linear) -> Linear:
    """The layer as one of ours, with the same parameters; nothing is drawn."""
    with torch.device("meta"):
        ours = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    ours.weight, ours.bias = layer.weight, layer.bias
    return ours


class Gelu(UsesBackend, nn.GELU):
    """x Phi(x), any shape."""

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"gelu": ()}

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.gelu(x)
