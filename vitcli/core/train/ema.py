"""An exponential moving average of the weights."""

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Moving average of a model's weights, held in ``model``.

    Each update sets average <- d * average + (1 - d) * weights. After t updates
    d = min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage, so that the
    random start loses its weight quickly. Integer buffers are copied. The tensors that a module
    lists in ``not_averaged`` are copied too: the mean of two random projections is not a random
    projection.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        not_averaged = {
            f"{path}.{name}"
            for path, module in model.named_modules()
            for name in getattr(module, "not_averaged", ())
        }
        named = [*model.named_parameters(), *model.named_buffers()]
        averages = [*self.model.parameters(), *self.model.buffers()]
        self._averaged: list[tuple[Tensor, Tensor]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        for (name, source), average in zip(named, averages, strict=True):
            is_mean = average.is_floating_point() and name not in not_averaged
            (self._averaged if is_mean else self._copied).append((average, source))

    def share(self, num_updates: int) -> float:
        """Return the share 1 - d that the weights have in an update."""
        return 1 - min(self.decay, (1 + num_updates) / (10 + num_updates))

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        averages = [average for average, _ in self._averaged]
        sources = [source for _, source in self._averaged]
        torch._foreach_lerp_(averages, sources, self.share(num_updates))
        self.copy()

    @torch.no_grad()
    def update_by(self, share: Tensor) -> None:
        """Update with a share that is on the device, where a CUDA graph reads it."""
        averages = [average for average, _ in self._averaged]
        changes = torch._foreach_sub([source for _, source in self._averaged], averages)
        torch._foreach_mul_(changes, share)
        torch._foreach_add_(averages, changes)
        self.copy()

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the tensors that are not averaged."""
        for average, source in self._copied:
            average.copy_(source)

    def versions(self) -> list[int]:
        """Return numbers that change when the host changes a tensor that is not averaged."""
        return [source._version for _, source in self._copied]
