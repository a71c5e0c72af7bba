"""How vitcli uses torch: the arithmetic inside a block, and optimisers that begin at once."""

from contextlib import AbstractContextManager, nullcontext
from inspect import unwrap
from typing import TypeVar

import torch
from torch.optim import Optimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context of mixed precision; None keeps fp32."""
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off, for arithmetic that needs fp32."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


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
