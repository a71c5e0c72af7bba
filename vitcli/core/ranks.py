"""The processes (ranks) of one training, connected by torch.distributed.

Every rank holds the whole data set and all weights, and computes its own rows of each batch. The
gradients are averaged, so losses that are means over a batch are those of the whole batch. Outside
``together`` there is one rank, and nothing is exchanged.

One all-reduce after the backward pass takes all gradients and the reported scalars. Why it is not
DistributedDataParallel: docs/how-to/ranks.md.

Axes: B batch, b rows of a rank in a part of a batch.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Tensors = dict[str, Tensor]
MIXING = "lam"
"""A table of the epochs whose images are mixed with the image before them."""


class LostRankError(RuntimeError):
    """Another rank did not take part in an exchange, or has other numbers."""


@contextmanager
def exchange() -> Iterator[None]:
    """Turn the error of an exchange into a LostRankError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        reason = re.sub(r"^\[\S+\] ", "", first_line).partition(". ")[0]
        text = f"another rank failed, was killed or did not answer ({reason})"
        raise LostRankError(text) from error


_is_joined = False
"""Whether this process trains with the others of torch's default process group."""


@contextmanager
def together(is_joined: bool = True) -> Iterator[None]:
    """Train with the others of the default process group in the block; or alone, with False."""
    global _is_joined
    was_joined = _is_joined
    _is_joined = is_joined
    try:
        yield
    finally:
        _is_joined = was_joined


def size() -> int:
    return dist.get_world_size() if _is_joined else 1


def own_rank() -> int:
    return dist.get_rank() if _is_joined else 0


def own_batch(rows: Tensors, parts: int, make: Callable[[Tensors], Tensors]) -> Tensors:
    """Return this rank's rows of the batch that ``make`` makes from the rows of a batch.

    A rank has the same share of each of ``parts`` equal parts. ``make`` makes a row from the same
    row of the tables and, with mixing, from the one before.
    """
    count, before = len(rows["index"]), int(MIXING in rows)
    share = count // parts // size()
    starts = torch.arange(parts) * (count // parts) + own_rank() * share
    places = (starts[:, None] + torch.arange(-before, share)).flatten() % count
    made = make({name: table[places.to(table.device)] for name, table in rows.items()})
    if not before:
        return made
    return {
        name: value.unflatten(0, (parts, share + 1))[:, 1:].flatten(0, 1)
        for name, value in made.items()
    }


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all ranks: (b, ...) -> (ranks * b, ...), with gradient.

    The gradient is right if all ranks compute the same loss from the result.
    """
    gathered: Tensor = _Gather.apply(rows) if size() > 1 else rows
    return gathered


class _Gather(torch.autograd.Function):
    """The rows of all ranks. All ranks compute one loss, so each has the gradient of all rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        gathered = [torch.empty_like(rows) for _ in range(size())]
        with exchange():
            dist.all_gather(gathered, rows)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # The gradients are averaged over the ranks, and the other ranks add nothing to these rows.
        return gradients[0].chunk(size())[own_rank()] * size()


def average(gradients: list[Tensor], scalars: Tensors) -> Tensors:
    """Replace the gradients by their means over the ranks; return the means of the scalars."""
    if size() == 1:
        return scalars
    values = torch.stack([value.to(gradients[0]) for value in scalars.values()])
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), values])
    with exchange():
        dist.all_reduce(flat)
    flat /= size()
    *parts, values = flat.split([*(gradient.numel() for gradient in gradients), len(values)])
    means = [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]
    torch._foreach_copy_(gradients, means)
    return dict(zip(scalars, values.unbind(), strict=True))


def mean(tensor: Tensor) -> Tensor:
    """Return the mean over the ranks, without gradient."""
    tensor = tensor.detach()
    if size() > 1:
        tensor = tensor.clone()
        with exchange():
            dist.all_reduce(tensor)
        tensor /= size()
    return tensor


def from_first(tensor: Tensor) -> Tensor:
    """Replace a tensor without gradient by that of rank 0, and return it."""
    if size() > 1:
        with exchange():
            dist.broadcast(tensor, 0)
    return tensor


def agree(number: int) -> int:
    """Return the largest number of all ranks, when all have come here."""
    if size() == 1:
        return number
    largest = torch.tensor([number])
    with exchange():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def check_weights(weights: Mapping[str, Tensor]) -> None:
    if size() > 1:
        number = 0
        for tensor in weights.values():
            number = zlib.crc32(bytes(tensor.cpu().flatten().view(torch.uint8).numpy()), number)
        check_equal(number, "weights")


def check_equal(number: int, what: str) -> None:
    if agree(number) != -agree(-number):
        raise LostRankError(f"the {what} of the ranks differ")
