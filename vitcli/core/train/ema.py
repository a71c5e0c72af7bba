"""An exponential moving average of the weights."""

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Keeps ``model``: average <- d * average + (1 - d) * weights after each step.

    d = min(decay, (1 + t) / (10 + t)) after t updates, so that the average forgets the random
    start, as TensorFlow's ExponentialMovingAverage does. Integer buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self._source = [*model.parameters(), *model.buffers()]
        self._average = [*self.model.parameters(), *self.model.buffers()]

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        decay = min(self.decay, (1 + num_updates) / (10 + num_updates))
        pairs = list(zip(self._average, self._source, strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        averages: list[Tensor] = [average for average, _ in floats]
        torch._foreach_lerp_(averages, [source for _, source in floats], 1 - decay)
        for average, source in pairs:
            if not average.is_floating_point():
                average.copy_(source)
