"""Normalisation layers. Axes: B batch, N tokens, D embed_dim."""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from vitcli.core.across import again

EPS = 1e-6
"""Epsilon of norms that have no setting of it."""


class TokenBatchNorm(nn.BatchNorm1d):
    """BatchNorm of each feature over batch and tokens: (B, N, D) -> (B, N, D).

    Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167. Deviation: the lecture notes describe
    statistics "for every pixel across the batch". Here, as in torch's BatchNorm, all positions
    share their statistics. The output for an image depends on the other images of its batch.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class FrozenStatistics(AbstractContextManager[None]):
    """A context in which BatchNorm normalises as usual but does not update running statistics.

    Use the context for a forward pass that is repeated to compute gradients. The same context can
    be entered several times. Layers that look across the ranks do so again.
    """

    def __init__(self, module: nn.Module) -> None:
        self.across = again()
        self.norms = [part for part in module.modules() if isinstance(part, TokenBatchNorm)]

    def __enter__(self) -> None:
        self.across.__enter__()
        self.kept = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error: Any) -> None:
        self.across.__exit__(*error)
        for norm, (momentum, count) in zip(self.norms, self.kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
