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
    def update(self, share: float | Tensor) -> None:
        """Move the average towards the weights by ``share``, which in a CUDA graph is a tensor."""
        averages = [average for average, _ in self._averaged]
        sources = [source for _, source in self._averaged]
        if isinstance(share, Tensor):
            changes = torch._foreach_sub(sources, averages)
            torch._foreach_mul_(changes, share)
            torch._foreach_add_(averages, changes)
        else:
            torch._foreach_lerp_(averages, sources, share)
        for average, source in self._copied:
            average.copy_(source)
