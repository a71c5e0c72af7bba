"""Exchanges between the processes (ranks) of one training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class LostRankError(RuntimeError):
    """Another rank did not take part in an exchange."""


@contextmanager
def exchange() -> Iterator[None]:
    """Turn the error of an exchange into a LostRankError."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(str(error).partition("\n")[0]) from error


def total(tensor: Tensor) -> Tensor:
    """Return the sum over the ranks, without gradient."""
    found = tensor.detach().clone(memory_format=torch.contiguous_format)
    with exchange():
        dist.all_reduce(found)
    return found
