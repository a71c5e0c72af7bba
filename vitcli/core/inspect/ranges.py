"""The range of the values in each layer of a model during one training step."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS, GRADIENTS, WEIGHTS = "activations", "gradients", "weights"
Place = tuple[str, str]
"""Kind of values, and name of the layer."""


class LayerRanges:
    """Activations, gradients and weights of each layer in the step taken inside ``watch``.

    A layer has parameters of its own. Where one kernel computes several layers, the activations
    are those of the smallest module around them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.names = {part: name for name, part in module.named_modules()}
        self._found: dict[Place, dict[Any, Tensor]] = {}

    @contextmanager
    def watch(self, scale: float = 1.0) -> Iterator[None]:
        """Keep the outputs, the gradients before clipping, and the weights after the block.

        The loss is multiplied by ``scale``; the gradients that are kept are not.
        """
        with ExitStack() as stack:
            for part, name in self.names.items():
                if next(part.parameters(), None) is not None:
                    stack.callback(part.register_forward_hook(self._keep_output).remove)
                for key, parameter in part.named_parameters(recurse=False):
                    if parameter.requires_grad:
                        keep = partial(self._keep_gradient, (GRADIENTS, name), key, scale)
                        stack.callback(parameter.register_post_accumulate_grad_hook(keep).remove)
            yield
        for part, name in self.names.items():
            for key, parameter in part.named_parameters(recurse=False):
                self._found.setdefault((WEIGHTS, name), {})[key] = parameter.detach()

    def _keep_output(self, part: nn.Module, _: object, output: Any) -> None:
        name = self.names[part]
        inside = f"{name}." if name else ""
        is_seen = any(k == ACTIVATIONS and other.startswith(inside) for k, other in self._found)
        if is_seen and next(part.parameters(recurse=False), None) is None:
            return
        kept = self._found.setdefault((ACTIVATIONS, name), {})
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor):
                kept[len(kept)] = tensor.detach().clone()  # what follows may overwrite it

    def _keep_gradient(self, place: Place, key: str, scale: float, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self._found.setdefault(place, {})[key] = parameter.grad / scale

    def rows(self) -> list[dict[str, Any]]:
        """Return ``layer``, ``values``, and the range of each, in the order of computation.

        ``min``, ``max`` and ``rms`` are those of the finite values, and None without any.
        """
        return [
            {"layer": name or "model", "values": kind} | range_of(tensors.values())
            for (kind, name), tensors in self._found.items()
        ]


def range_of(tensors: Iterable[Tensor]) -> dict[str, float | None]:
    values = torch.cat([tensor.flatten().cpu().double() for tensor in tensors])
    finite = values[values.isfinite()]
    numbers = {"min": finite.min, "max": finite.max, "rms": finite.square().mean().sqrt}
    return {
        **{name: number().item() if len(finite) else None for name, number in numbers.items()},
        "not_finite_share": (len(values) - len(finite)) / max(1, len(values)),
    }
