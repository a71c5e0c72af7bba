"""Compile the module of a task with torch.compile."""

from collections.abc import Callable, Iterable

import torch

from vitcli.core.data.batches import Batch
from vitcli.core.tasks.task import Task
from vitcli.core.train.fit import autocast_to


def compile_task(
    task: Task,
    batches: Iterable[Batch],
    autocast: torch.dtype | None,
    on_message: Callable[[str], None],
) -> bool:
    """Set ``task.network`` to the compiled module, if the experiment asks for it.

    Return whether the module is compiled, which changes the rounding.

    The compiled module is tried on a part of the first batch, so that a failure is reported before
    the training. After a failure the training continues without torch.compile.
    """
    module, train = task.module, task.spec.train
    device = next(module.parameters()).device
    if not train.compiles_on(device.type):
        return False
    on_message("compiling the model ...")
    batch = next(iter(batches))
    part = {name: value[: train.batch_size // train.accumulate] for name, value in batch.items()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    task.network = torch.compile(module)  # type: ignore[assignment]
    compiled = True
    try:
        with autocast_to(device, autocast):
            loss = task.losses(part)["loss"]
        loss.backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # without a compiler, training continues uncompiled
        reason = str(error).partition("\n")[0]
        on_message(f"torch.compile failed, training without it: {reason}")
        torch._dynamo.reset()
        task.network, compiled = module, False
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])  # undo the changes of running statistics by the trial batch
    module.zero_grad(set_to_none=True)
    return compiled
