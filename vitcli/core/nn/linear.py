"""Linear and GELU layers that the model's backend computes.

Parameters, parameter names and initial values are the same as in torch's classes.
"""

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import UsesBackend


class Linear(UsesBackend, nn.Linear):
    """A linear layer, x W^T + b: (..., in) -> (..., out)."""

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.out_features, self.in_features)}

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.linear(x, self.weight, self.bias)


def wrap_linear(layer: nn.Linear) -> Linear:
    """Return a ``Linear`` with the parameters of a torch layer. No random number is drawn."""
    with torch.device("meta"):
        ours = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    ours.weight, ours.bias = layer.weight, layer.bias
    return ours


class Gelu(UsesBackend, nn.GELU):
    """GELU, x Phi(x), for tensors of any shape."""

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"gelu": ()}

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.gelu(x)
