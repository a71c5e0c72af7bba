"""Muon in fp32 for CPUs.

torch.optim.Muon multiplies matrices in bf16, which CPUs without AMX or AVX512-BF16 emulate slowly.
Axes: K matrices of one shape, R rows, S columns.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Muon(torch.optim.Muon):
    """torch's Muon. On a CPU it computes in fp32, and on all matrices of one shape together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters. On a CPU, ``closure`` is not supported."""
        if any(p.device.type != "cpu" for group in self.param_groups for p in group["params"]):
            return super().step(closure)
        assert closure is None
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)
        return None

    def _update(self, parameters: Sequence[Parameter], group: dict[str, Any]) -> None:
        momentum, updates = group["momentum"], []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
            updates.append(parameter.grad.lerp(buffer, momentum) if group["nesterov"] else buffer)
        rows, columns = parameters[0].shape
        rate = group["lr"] * math.sqrt(max(1, rows / columns))
        directions = orthogonalize(
            torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=rate)


def orthogonalize(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return matrices (K, R, S) with singular values near 1, by Newton-Schulz iterations."""
    a, b, c = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if is_tall else matrices
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        update = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, update, found, beta=a)
    return found.mT if is_tall else found
