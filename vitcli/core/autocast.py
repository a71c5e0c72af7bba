"""The type of the arithmetic inside a block."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context of mixed precision; None keeps fp32."""
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off, for arithmetic that needs fp32."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
