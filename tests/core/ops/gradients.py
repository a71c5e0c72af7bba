"""Outputs and gradients of a function, and their error."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def error(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def gradients(
    function: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor], *grads: Tensor
) -> list[Tensor]:
    """Return the outputs and the gradients of the inputs, for given gradients of the outputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    found = function(*leaves)
    outputs = list(found) if isinstance(found, tuple) else [found]
    matching = [grad.to(out.dtype) for grad, out in zip(grads, outputs, strict=True)]
    torch.autograd.backward(outputs, matching)
    missing = [leaf for leaf in leaves if leaf.grad is None]
    assert not missing, "an input has no gradient"
    return [
        *(out.detach() for out in outputs),
        *(leaf.grad for leaf in leaves if leaf.grad is not None),
    ]
