"""How vitcli uses torch: mixed precision, optimisers that begin at once, and copies."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import unwrap
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context of mixed precision; None keeps fp32."""
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off, for arithmetic that needs fp32."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode in the block, and then into its mode of before."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def without_compiler(cls: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """Return an optimiser class that computes the same and does not import ``torch._dynamo``.

    torch's own classes import the compiler even if nothing is compiled. The import takes more than
    a second, which would delay the first step, and more than 100 MB.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: unwrap(getattr(cls, name)) for name in names}
    step = torch.no_grad()(unwrap(cls.step))
    made: type[AnyOptimizer] = type(cls.__name__, (cls,), methods | {"step": step})
    return made


def pinned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in pinned memory, from which a CUDA device reads while the host goes on."""
    return {name: tensor.pin_memory() for name, tensor in tensors.items()}


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return tensors of the host on a device. The host does not wait for the copies."""
    if device.type == "cuda":
        tensors = pinned(tensors)
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
