"""Two threads for the tests of kernels, which divide their work by threads; errors of gradients."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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
