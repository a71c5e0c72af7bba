"""An exponential moving average of the weights."""

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Moving average of a model's weights, held in ``model``.

    Each update sets average <- d * average + (1 - d) * weights. After t updates
    d = min(decay, (1 + t) / (10 + t)), as in TensorFlow's ExponentialMovingAverage, so that the
    random start loses its weight quickly. Integer buffers are copied, and so are buffers with
    infinite values, such as a mask, and the tensors that a module lists in ``not_averaged``: the
    mean of two random projections is not a random projection.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        not_averaged = {
            f"{path}.{name}".removeprefix(".")
            for path, module in model.named_modules()
            for name in getattr(module, "not_averaged", ())
        }
        self._averages = [*self.model.parameters(), *self.model.buffers()]
        self._parameters = [*model.parameters()]
        buffers = [name for name, _ in model.named_buffers()]
        places = [name.rpartition(".") for name in buffers]
        self._buffers = [(model.get_submodule(path), key) for path, _, key in places]
        """The module of each buffer and its name there: a module may replace a buffer."""
        names = [*(name for name, _ in model.named_parameters()), *buffers]
        self._are_means = [
            average.is_floating_point()
            and name not in not_averaged
            and bool(average.isfinite().all())
            for name, average in zip(names, self._averages, strict=True)
        ]

    def share(self, num_updates: int) -> float:
        """Return the share 1 - d that the weights have in an update."""
        return 1 - min(self.decay, (1 + num_updates) / (10 + num_updates))

    @torch.no_grad()
    def update(self, share: float | Tensor) -> None:
        """Move the average towards the weights by ``share``, which in a CUDA graph is a tensor."""
        weights = [*self._parameters, *(getattr(module, key) for module, key in self._buffers)]
        pairs = [*zip(self._averages, weights, self._are_means, strict=True)]
        averages = [average for average, _, is_mean in pairs if is_mean]
        sources = [source for _, source, is_mean in pairs if is_mean]
        if isinstance(share, Tensor):
            changes = torch._foreach_sub(sources, averages)
            torch._foreach_mul_(changes, share)
            torch._foreach_add_(averages, changes)
        else:
            torch._foreach_lerp_(averages, sources, share)
        for average, source, is_mean in pairs:
            if not is_mean:
                average.copy_(source)
