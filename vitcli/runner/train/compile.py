"""Compile the module of a task with torch.compile."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from vitcli.core.data.batches import Batch, make_batch
from vitcli.core.data.source import Images
from vitcli.core.objectives.objective import Task
from vitcli.core.train.evaluate import images_at_once
from vitcli.core.train.fit import autocast_to
from vitcli.runner.errors import ConfigError
from vitcli.runner.machine.resources import is_gpu_error
from vitcli.runner.text import ignore_message


class LimitReport(logging.Filter):
    """Tells the user when torch stops compiling a function. torch only logs this, on stderr."""

    on_message: Callable[[str], None] = staticmethod(ignore_message)

    def filter(self, record: logging.LogRecord) -> bool:
        if "hit config." not in str(record.msg):
            return True
        limit, count, function, *_ = record.args or ("its limit", "", "the model")
        self.on_message(
            f"warning: torch.compile reached {limit} ({count}) in {function}, so a part of the"
            " training runs uncompiled and more slowly; TORCH_LOGS=recompiles shows the reasons"
        )
        return False


LIMIT = LimitReport()


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

    Raises:
        ConfigError: The experiment asks for it, and there are several ranks.
    """
    module, train = task.module, task.spec.train
    device = next(module.parameters()).device
    if not train.compiles_on(device.type):
        return False
    if task.ranks.size > 1 and train.compile:
        raise ConfigError("train.compile: torch.compile needs a single process; remove the field")
    if task.ranks.size > 1:
        on_message("torch.compile needs a single process, training without it")
        return False
    on_message("compiling the model ...")
    batch = next(iter(batches))
    part = {name: value[: train.batch_size // train.accumulate] for name, value in batch.items()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    prepare_compiler(on_message)
    task.network = torch.compile(module, dynamic=False)  # type: ignore[assignment]
    compiled = True
    try:
        with autocast_to(device, autocast):
            loss = task.losses(part)["loss"]
        loss.backward()
    except Exception as error:  # without a compiler, training continues uncompiled
        if isinstance(error, torch.OutOfMemoryError) or is_gpu_error(error):
            raise
        reason = str(error).partition("\n")[0]
        on_message(f"torch.compile failed, training without it: {reason}")
        torch._dynamo.reset()
        task.network, compiled = module, False
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])  # undo the changes of running statistics by the trial batch
    module.zero_grad(set_to_none=True)
    return compiled


def compile_evaluation(
    task: Task, module: nn.Module, images: Images, on_message: Callable[[str], None]
) -> nn.Module:
    """Return the module compiled for evaluations in fp32, which see batches of one shape.

    It is tried on one batch. After a failure, return the module itself.
    """
    size = images_at_once(images.pixels.device)
    first = images[:size]
    compiled: nn.Module = torch.compile(module, dynamic=False)  # type: ignore[assignment]
    works = _works(lambda: task.outputs(compiled, first), "evaluating", on_message)
    return compiled if works else module


def compile_batches(
    task: Task, batches: Iterable[Batch], on_message: Callable[[str], None]
) -> None:
    """Set ``task.prepare`` to the compiled function that makes batches, if it can make one."""
    task.prepare = compiled_make_batch()
    if not _works(lambda: next(iter(batches)), "making batches", on_message):
        task.prepare = make_batch


def compiled_make_batch() -> Callable[..., Batch]:
    """Return ``make_batch`` compiled, with the same pixels.

    ``emulate_precision_casts`` also keeps a multiplication and an addition apart. Fused, they would
    round once instead of twice.
    """
    exact: dict[str, Any] = {"emulate_precision_casts": True}
    return torch.compile(make_batch, dynamic=False, options=exact)


def _works(run: Callable[[], object], doing: str, on_message: Callable[[str], None]) -> bool:
    try:
        run()
    except Exception as error:  # as in compile_task
        if isinstance(error, torch.OutOfMemoryError) or is_gpu_error(error):
            raise
        reason = str(error).partition("\n")[0]
        on_message(f"torch.compile failed, {doing} without it: {reason}")
        return False
    return True


def prepare_compiler(on_message: Callable[[str], None]) -> None:
    """Let torch compile as in a new process, and report to the user if it stops compiling.

    torch keeps at most eight versions of a function, such as a model's ``forward``, for all models
    of a process together. After that many trainings it would compile nothing any more.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    LIMIT.on_message = on_message
    logging.getLogger("torch._dynamo.convert_frame").addFilter(LIMIT)
    # The default of Triton 3.9, which warns that it will change. Results must not change with it.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    # torch recommends TF32 wherever fp32 is compiled. Here, --precision tf32 allows it.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    # Without a CUDA toolkit, Triton takes the file that comes with it.
    warnings.filterwarnings("ignore", "CUDA libdevice not found")
