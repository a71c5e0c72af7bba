"""Layers that look across a batch, computed across the rows of all ranks.

Batch norm takes its statistics over the rows of all ranks. Dropout and drop path draw for the whole
batch and take the rows of this rank, so the draws are a function of (seed, step) and all ranks
leave the generator in the same state. On the CPU the draws are those of one process. On CUDA torch
draws dropout inside its kernels, in another order: there they are equal in distribution only.

Axes: B batch, b rows of this rank, C features. The rows of a rank are contiguous in a batch.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitcli.core.exchange import total


class AcrossRanks(TorchFunctionMode):
    """A context in which batch norm and random draws cover the rows of all ranks."""

    active: ClassVar["AcrossRanks | None"] = None

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        self.was_used = False
        """Whether a layer has drawn random numbers or has normalised over the batch."""

    def __enter__(self) -> Self:
        self._before, AcrossRanks.active = AcrossRanks.active, self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        AcrossRanks.active = self._before
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        replacement = REPLACED.get(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        return replacement(self, *args, **(kwargs or {}))


def again() -> AbstractContextManager[object]:
    """Return the context that is active now, for blocks that the backward pass computes again.

    torch's backward pass leaves the contexts of its caller.
    """
    active = AcrossRanks.active
    return AcrossRanks(active.rank, active.size) if active else nullcontext()


def draw_own(
    ranks: AcrossRanks, shape: Iterable[int], draw: Callable[[tuple[int, ...]], Tensor]
) -> Tensor:
    """Return the rows of this rank of what ``draw`` draws for the rows of all ranks."""
    ranks.was_used = True
    count, *rest = shape
    return draw((count * ranks.size, *rest))[ranks.rank * count : (ranks.rank + 1) * count]


def rand(ranks: AcrossRanks, *size: Any, **options: Any) -> Tensor:
    """Return what ``torch.rand`` draws for rows."""
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    if options.get("generator") is not None:
        return torch.rand(shape, **options)
    return draw_own(ranks, shape, lambda whole: torch.rand(whole, **options))


def rand_like(ranks: AcrossRanks, x: Tensor, **options: Any) -> Tensor:
    """Return what ``torch.rand_like`` draws for rows."""
    return fill_own(ranks, torch.empty_like(x, **options), Tensor.uniform_)


def randn_like(ranks: AcrossRanks, x: Tensor, **options: Any) -> Tensor:
    """Return what ``torch.randn_like`` draws for rows."""
    return fill_own(ranks, torch.empty_like(x, **options), Tensor.normal_)


def dropout(
    ranks: AcrossRanks, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return ``F.dropout`` of rows."""
    if not training or not 0 < p < 1:
        return F.dropout(x, p, training, inplace)
    return x * fill_own(ranks, x, lambda drawn: drawn.bernoulli_(1 - p)).div(1 - p)


def fill_own(ranks: AcrossRanks, x: Tensor, fill: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the rows of this rank of a new tensor like x for all ranks, which ``fill`` fills.

    torch draws in the order of the memory.
    """
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda axis: -strides[axis])
    back = [order.index(axis) for axis in range(x.ndim)]

    def draw(shape: tuple[int, ...]) -> Tensor:
        return fill(x.new_empty([shape[axis] for axis in order])).permute(back)

    return draw_own(ranks, x.shape, draw)


def scaled_dot_product_attention(
    ranks: AcrossRanks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Return torch's function of this name. With dropout, the weights are stored."""
    if not dropout_p:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, **options
        )
    scale = options.get("scale")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return dropout(ranks, scores.softmax(-1), dropout_p) @ value


def batch_norm(
    ranks: AcrossRanks,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``F.batch_norm`` with the statistics of the rows of all ranks: (b, C, ...)."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    ranks.was_used = True
    wide = x if x.dtype is torch.float64 else x.float()
    axes, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    mean = _mean(wide.mean(axes), ranks)
    centred = wide - mean.view(shape)
    variance = _mean(centred.square().mean(axes), ranks)
    if running_mean is not None and running_var is not None:
        count = ranks.size * x.numel() // x.shape[1]
        unbiased = variance.detach() * (count / (count - 1))
        with torch.no_grad():
            running_mean.lerp_(mean.detach().to(running_mean), momentum)
            running_var.lerp_(unbiased.to(running_var), momentum)
    found = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        found = found * weight.view(shape)
    if bias is not None:
        found = found + bias.view(shape)
    return found.to(x.dtype)


def _mean(tensor: Tensor, ranks: AcrossRanks) -> Tensor:
    found: Tensor = _Mean.apply(tensor, ranks.size)
    return found


class _Mean(torch.autograd.Function):
    """The mean over the ranks, with the gradient of the sum of the losses of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, size: int) -> Tensor:
        ctx.size = size
        return total(tensor) / size

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return total(gradients[0]) / ctx.size, None


REPLACED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.rand: rand,
    torch.rand_like: rand_like,
    torch.randn_like: randn_like,
    F.dropout: dropout,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.batch_norm: batch_norm,
}
