"""The optimisation loop. It opens no file, reads no clock and does not wait for the device."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitcli.core.nn.attention_rule import after_step
from vitcli.core.randomness import begin_step
from vitcli.core.ranks import ALONE, Ranks
from vitcli.core.train.optim import set_lr

Batch = dict[str, Tensor]


class Objective(Protocol):
    """The part of a task that a training step uses."""

    module: nn.Module
    """Everything that is trained and saved."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the scalars to report; the training minimises ``loss``."""
        ...

    def after_step(self) -> None:
        """Update what the optimiser does not update, such as a teacher network."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The report of one optimiser step."""

    step: int
    """Number of steps so far, including this one."""
    lr: float
    scalars: dict[str, Tensor]
    """Scalars on the device; the caller decides when to read them with ``.item()``."""


def fit(
    task: Objective,
    batches: Iterable[Batch],
    optimizers: Sequence[Optimizer],
    lr_factor: Callable[[int], float],
    *,
    seed: int = 0,
    first_step: int = 0,
    max_grad_norm: float | None = 1.0,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Step]:
    """Take one optimisation step per batch, and yield after each step.

    The order of a step: the optimisers, the task's ``after_step``, that of the attention. Whoever
    averages the weights does so last.

    The random draws of step s, such as dropout, are a function of (seed, s). Therefore a resumed
    run needs no saved random state.

    Args:
        task: Computes the losses of a batch.
        batches: Dictionaries of tensors on one device; the first axis is the batch.
        optimizers: Their groups have a ``peak_lr``.
        lr_factor: Returns the share of the peak learning rate at a step (from 0).
        seed: Random seed of the steps.
        first_step: Number of the first step taken here.
        max_grad_norm: Largest norm of the gradient, by clipping; None does not clip.
        accumulate: Number of equal parts of a batch whose gradients are averaged.
        autocast: Type of the forward pass; None keeps fp32.
        scaler: Loss scaling for fp16; it skips a step with infinite gradients.
        ranks: The processes of the training. A batch has the rows of this process.
    """
    for step, batch in enumerate(batches, start=first_step):
        begin_step(batch["images"].device, seed, step)
        lr = set_lr(optimizers, lr_factor(step))
        scalars = learn(
            batch,
            task,
            optimizers,
            max_grad_norm=max_grad_norm,
            accumulate=accumulate,
            autocast=autocast,
            scaler=scaler,
            ranks=ranks,
        )
        after_step(task.module, seed, step)
        yield Step(step=step + 1, lr=lr, scalars=scalars)


def learn(
    batch: Batch,
    task: Objective,
    optimizers: Sequence[Optimizer],
    *,
    max_grad_norm: float | None,
    accumulate: int,
    autocast: torch.dtype | None,
    scaler: torch.amp.GradScaler | None,
    ranks: Ranks = ALONE,
) -> dict[str, Tensor]:
    """Take an optimisation step on a batch and call the task's ``after_step``.

    Returns the scalars of the batch and ``grad_norm``.
    """
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    with ranks.across():
        scalars = backward(task, batch, accumulate, autocast, scaler)
    scalars = ranks.average(partial(gradients, optimizers), scalars)
    grad_norm = take_step(optimizers, max_grad_norm, scaler)
    task.after_step()
    return scalars | {"grad_norm": grad_norm}


def backward(
    task: Objective,
    batch: Batch,
    accumulate: int,
    autocast: torch.dtype | None,
    scaler: torch.amp.GradScaler | None,
) -> dict[str, Tensor]:
    """Add the gradients of all parts of a batch; return the mean of their scalars."""
    parts = [dict(zip(batch, values, strict=True)) for values in _split(batch, accumulate)]
    totals: dict[str, Tensor] = {}
    for part in parts:
        with autocast_to(part["images"].device, autocast):
            scalars = task.losses(part)
        loss = scalars["loss"] / accumulate
        (scaler.scale(loss) if scaler else loss).backward()
        for name, value in scalars.items():
            share = value.detach() / accumulate
            totals[name] = totals[name] + share if name in totals else share
    return totals


def _split(batch: Batch, parts: int) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(value.chunk(parts) for value in batch.values()), strict=True)


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off, for arithmetic that needs fp32."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def take_step(
    optimizers: Sequence[Optimizer],
    max_grad_norm: float | None,
    scaler: torch.amp.GradScaler | None,
) -> Tensor:
    """Clip the gradient and take a step; return the gradient's norm before clipping."""
    if scaler:
        unscale(scaler, optimizers)
    params = parameters(optimizers)
    grad_norm = total_norm(gradients(optimizers))
    if max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(params, max_grad_norm, grad_norm)
    for optimizer in optimizers:
        scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    return grad_norm


def parameters(optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    return [p for o in optimizers for group in o.param_groups for p in group["params"]]


def gradients(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p.grad for p in parameters(optimizers) if p.grad is not None]


def unscale(scaler: torch.amp.GradScaler, optimizers: Sequence[Optimizer]) -> None:
    """Divide the gradients by the scale. If one is not finite, all optimisers skip the step.

    The scaler alone would skip only the optimiser of that gradient. The decision stays on the
    device, so the host does not wait.
    """
    scaler._per_optimizer_states.clear()  # a CUDA graph that failed may have left some
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    flags = [flag for o in optimizers for flag in scaler._found_inf_per_device(o).values()]
    if len(flags) > 1:
        together = torch.stack(flags).amax()
        for flag in flags:
            flag.copy_(together)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together.

    On CUDA, torch's ``get_total_norm`` copies a table from the host in every call. This form does
    not, so that a CUDA graph can contain it.
    """
    if gradients[0].device.type != "cuda":
        return nn.utils.get_total_norm(gradients)
    return torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
