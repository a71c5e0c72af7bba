"""Muon on all matrices of one shape together.

torch.optim.Muon updates matrix by matrix: on a GPU, that is dozens of small kernels per matrix.
It also multiplies in bf16, which CPUs without AMX or AVX512-BF16 emulate slowly.
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
    """torch's Muon for all matrices of one shape together; on a CPU, in fp32.

    The learning rate may be a tensor. A ``torch.amp.GradScaler`` that has found infinite gradients
    leaves matrices and momentum unchanged, without the host.
    """

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters. ``closure`` is not supported."""
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
        buffers = [self._buffer(parameter) for parameter in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        lr, overflow = group["lr"], getattr(self, "found_inf", None)
        if overflow is not None:  # along its own momentum and at rate 0, a step changes nothing
            chosen = torch.where(overflow.bool(), torch.stack(buffers), torch.stack(gradients))
            gradients, lr = list(chosen.unbind()), lr * (1 - overflow)
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = buffers
        if group["nesterov"]:
            updates = list(torch._foreach_lerp(gradients, buffers, group["momentum"]))
        rows, columns = parameters[0].shape
        rate, directions = lr * math.sqrt(max(1, rows / columns)), find_directions(updates, group)
        if isinstance(rate, Tensor):
            rate, directions = 1, directions * rate
        matrices: list[Tensor] = list(parameters)
        torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(matrices, directions.unbind(), alpha=rate)

    def _buffer(self, parameter: Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def find_directions(updates: Sequence[Tensor], group: dict[str, Any]) -> Tensor:
    """Return the orthogonalised updates (K, R, S), computed in bf16 except on a CPU."""
    matrices = torch.stack(tuple(updates))
    options = group["ns_coefficients"], group["ns_steps"], group["eps"]
    if matrices.device.type == "cpu":
        return orthogonalize(matrices, *options)
    found = orthogonalize(matrices.bfloat16(), *options)
    return found.to(matrices.dtype, memory_format=torch.contiguous_format)


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
