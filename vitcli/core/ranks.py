"""The processes (ranks) of one training.

Every rank holds the whole data set and all weights, and computes its own rows of each batch. The
losses and the gradients are those of the whole batch, so the number of ranks changes only the
rounding. A training in one process has ``ALONE``, which does nothing.

The gradients are averaged here and not by DistributedDataParallel. One all-reduce per step carries
all gradients, also if a batch has parts (``train.accumulate``), and the reported scalars travel
with them. Parameters that no rank uses keep a gradient of None, so weight decay leaves them alone.
Clipping, Muon, loss scaling and the weight average see averaged gradients without further code. The
price: the all-reduce begins when the backward pass has ended.

Axes: B batch, b rows of a rank in a part of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitcli.core.across import AcrossRanks
from vitcli.core.exchange import LostRankError, exchange, total

Tensors = dict[str, Tensor]
MIXED = "own"
"""Name of the table of an epoch whose images are mixed with the image before them."""


class Ranks:
    """The only process of a training: every exchange returns what it was given."""

    rank = 0
    size = 1

    def own_batch(self, rows: Tensors, parts: int, make: Callable[[Tensors], Tensors]) -> Tensors:
        """Return this rank's rows of the batch that ``make`` makes from the rows of a batch.

        Args:
            rows: Tables (B, ...) of the whole batch.
            parts: Number of equal parts of a batch. A rank has the same share of each part.
            make: Makes a row from the same row of the tables and, with mixing, from the one before.
        """
        return make(rows)

    def gather(self, rows: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Return the rows of all ranks: (b, ...) -> (sum of b, ...), with gradient.

        The gradient is right if all ranks compute the same loss from the result.

        Args:
            rows: The rows of this rank.
            counts: Number of rows of each rank, if the numbers differ.
        """
        return rows

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean over the ranks, without gradient."""
        return tensor

    def across(self) -> AbstractContextManager[object]:
        """Return a context in which a network computes as if it saw the rows of all ranks."""
        return nullcontext()

    def average(self, gradients: Callable[[], Sequence[Tensor]], scalars: Tensors) -> Tensors:
        """Replace the gradients by their means over the ranks; return the means of the scalars."""
        return scalars

    def agree(self, number: int) -> int:
        """Return the largest number of all ranks."""
        return number

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse to continue if the weights differ between ranks.

        Raises:
            LostRankError: A rank has other weights.
        """


ALONE = Ranks()


class GroupRanks(Ranks):
    """The ranks of the default process group of ``torch.distributed``."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._across = AcrossRanks(self.rank, self.size)
        self._has_stepped = False

    def own_batch(self, rows: Tensors, parts: int, make: Callable[[Tensors], Tensors]) -> Tensors:
        count, before = len(rows["index"]), int(MIXED in rows)
        each = count // parts // self.size
        starts = torch.arange(parts) * (count // parts) + self.rank * each
        places = (starts[:, None] + torch.arange(-before, each)).flatten() % count
        made = make({name: table[places.to(table.device)] for name, table in rows.items()})
        if not before:
            return made
        return {
            name: value.unflatten(0, (parts, each + 1))[:, 1:].flatten(0, 1)
            for name, value in made.items()
        }

    def gather(self, rows: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        found: Tensor = _Gather.apply(rows, counts or [len(rows)] * self.size)
        return found

    @torch.no_grad()
    def mean(self, tensor: Tensor) -> Tensor:
        return total(tensor) / self.size

    def across(self) -> AbstractContextManager[object]:
        # After a step without such layers, the context would only cost time.
        is_idle = self._has_stepped and not self._across.was_used
        return nullcontext() if is_idle else self._across

    def average(self, gradients: Callable[[], Sequence[Tensor]], scalars: Tensors) -> Tensors:
        own = list(gradients())
        self._check_gradients(own)
        values = torch.stack([value.to(own[0]) for value in scalars.values()])
        flat = total(torch.cat([*(g.flatten() for g in own), values])) / self.size
        *parts, values = flat.split([*(g.numel() for g in own), len(values)])
        means = [part.view(g.shape) for part, g in zip(parts, own, strict=True)]
        torch._foreach_copy_(own, means)
        return dict(zip(scalars, values.unbind(), strict=True))

    def _check_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Check in the first step that all ranks have gradients of the same sizes."""
        if not self._has_stepped:
            self._refuse_difference(hash(tuple(g.numel() for g in gradients)), "gradients")
            self._has_stepped = True

    def agree(self, number: int) -> int:
        found = torch.tensor([number])
        with exchange():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        sums = [tensor.flatten().view(torch.uint8).sum() for tensor in weights.values()]
        self._refuse_difference(int(torch.stack(sums).sum()), "weights")

    def _refuse_difference(self, number: int, what: str) -> None:
        largest, smallest = self.agree(number), -self.agree(-number)
        if largest != smallest:
            raise LostRankError(f"the {what} of the ranks differ")


class _Gather(torch.autograd.Function):
    """The rows of all ranks. All ranks compute one loss, so each has the gradient of all rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.place = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        most = max(counts)
        own = rows.new_zeros((most, *rows.shape[1:]))
        own[: len(rows)] = rows
        found = [torch.empty_like(own) for _ in counts]
        with exchange():
            dist.all_gather(found, own)
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # The gradients are averaged over the ranks, and the other ranks add nothing to these rows.
        return gradients[0][ctx.place] * dist.get_world_size(), None
