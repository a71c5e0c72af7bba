"""Copies between the host and a device, without a wait for each tensor."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

ALIGNMENT = 64
"""Each tensor in a shared buffer starts at a multiple of this number of bytes."""


def pinned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in pinned memory, from which a CUDA device reads while the host goes on."""
    return {name: tensor.pin_memory() for name, tensor in tensors.items()}


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return tensors of the host on a device. The host does not wait for the copies."""
    if device.type == "cuda":
        tensors = pinned(tensors)
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the host. The host waits once for all tensors of a CUDA device."""
    there = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_cuda}
    here = places_in_buffer(there, pin_memory=bool(there))
    for name, place in here.items():
        place.copy_(there[name], non_blocking=True)
    for device in {tensor.device for tensor in there.values()}:
        torch.cuda.current_stream(device).synchronize()
    return {
        name: here[name] if name in here else tensor.detach().cpu()
        for name, tensor in tensors.items()
    }


def places_in_buffer(
    tensors: Mapping[str, Tensor], *, pin_memory: bool = False
) -> dict[str, Tensor]:
    """Return uninitialised tensors of the same types and shapes, all in one buffer of the host."""
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors.values()]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pin_memory)
    starts = itertools.accumulate(sizes, initial=0)
    return {
        name: buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for (name, tensor), start in zip(tensors.items(), starts, strict=False)
    }
