"""Normalisation layers. Axes: B batch, N tokens, D embed_dim."""

from contextlib import AbstractContextManager
from typing import Any, TypeGuard

from torch import Tensor, nn

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


def is_batch_norm(layer: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Return whether a layer averages statistics over the batches."""
    is_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return is_norm and layer.running_mean is not None


class FrozenBuffers(AbstractContextManager[None]):
    """A context in which a module reads its saved buffers as they were when the context was made.

    What a forward pass writes to them, such as the statistics of BatchNorm, is lost. Use the
    context for a pass that is repeated to compute gradients. It can be entered several times.
    """

    def __init__(self, module: nn.Module) -> None:
        self.kept = [
            (part, name, buffer.clone())
            for part in module.modules()
            for name, buffer in part.named_buffers(recurse=False)
            if name not in part._non_persistent_buffers_set
        ]

    def __enter__(self) -> None:
        self.current = [getattr(part, name) for part, name, _ in self.kept]
        for part, name, buffer in self.kept:
            setattr(part, name, buffer.clone())

    def __exit__(self, *error: Any) -> None:
        for (part, name, _), buffer in zip(self.kept, self.current, strict=True):
            setattr(part, name, buffer)
