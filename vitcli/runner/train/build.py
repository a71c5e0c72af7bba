"""The one way to a training: device, arithmetic, kernels, compiler and CUDA graphs.

The command line, the Python interface, the dry run and the benchmarks build trainings with it.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch, augmented_batch, images_at_once
from vitcli.core.data.source import DataSet
from vitcli.core.nn.norm import is_batch_norm
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.experiment import ACCUMULATE
from vitcli.core.torch_use import autocast_to
from vitcli.core.train.training import Training
from vitcli.runner.data.extras import refuse_other_task
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import load_teacher
from vitcli.runner.experiment.resolve import steps_per_epoch
from vitcli.runner.machine.device import (
    DTYPES,
    arithmetic,
    chosen_kernels,
    keep_freed_memory,
    move_module,
    name_precision,
)
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.machine.resources import is_gpu_error
from vitcli.runner.text import Listener, ignore_message
from vitcli.runner.train.contract import (
    check_outputs,
    check_parts,
    checked_batch,
    warn_of_defaults,
    warn_of_parts,
)


def build_training(
    spec: ExperimentSpec,
    module: nn.Module,
    data: DataSet,
    on_message: Listener = ignore_message,
    *,
    kernels: str | None = None,
) -> Training:
    device = data.train.pixels.device
    if device.type == "cpu":
        keep_freed_memory()
    if ranks.size() > 1:
        refuse_batch_norm(module)
    task = task_class(spec)(spec, move_module(module, device, spec.model))
    if spec.task.taught_by:
        load_teacher(task)
    task.encoder(module).grad_checkpointing = spec.train.grad_checkpointing
    precision = name_precision(spec.train.precision, device)
    autocast = DTYPES.get(precision)
    # torch.compile generates its own kernels.
    wanted = kernels or ("torch" if spec.train.compile else spec.train.kernels)
    kernels = choose_kernels(module, device, autocast, wanted, on_message)
    if spec.train.early_stopping:
        is_alone("early stopping", "early_stopping", True, on_message)
    steps_per_epoch(spec, len(data.train), ranks.size())
    graphs = use_graphs(spec, device, on_message)
    if data.train.extra:
        refuse_other_task(spec.task, data)
    try:
        task.check_data(data)
        training = Training(spec, task, data, autocast, graphs=graphs, on_message=on_message)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    training.precision = precision
    training.kernels = kernels
    if spec.code:
        if spec.train.accumulate > 1 and any(map(is_batch_norm, module.modules())):
            raise ConfigError(ACCUMULATE)
        batch = checked_batch(training)
        check_parts(task, batch, spec.seed)
        warn_of_parts(task, batch, on_message)
        warn_of_defaults(spec.optim, on_message)
        check_outputs(task, data.train[:8])
    return training


@contextmanager
def settings(training: Training) -> Iterator[None]:
    """Compute in the block with torch's global settings of this training."""
    deterministic = training.spec.train.deterministic
    with chosen_kernels(training.device, deterministic), arithmetic(training.precision):
        yield


def compile_training(training: Training, on_message: Listener) -> None:
    """Compile what the experiment asks for: the module; on CUDA batches and evaluations, too.

    Each is tried on a batch. What fails stays uncompiled, after a message.
    """
    task, data, wanted = training.task, training.data, training.spec.train.compile
    on_gpu = training.device.type == "cuda"
    if not (on_gpu if wanted is None else wanted):
        return
    with arithmetic(training.precision):
        batches = training.batches(0)
        training.compiled = compile_task(task, batches, training.autocast, on_message)
        if not (training.compiled and on_gpu):
            return
        compile_batches(task, training.batches(0), on_message)
    # Evaluations are in fp32 and see batches of one shape.
    evaluated: nn.Module = torch.compile(training.evaluated, dynamic=False)  # type: ignore[assignment]
    images = data.test[: images_at_once(training.device)]
    if _works(lambda: task.outputs(evaluated, images), "evaluating", on_message):
        training.evaluated = evaluated


def refuse_batch_norm(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"several ranks: batch norm {name} ({type(part).__name__}) would see the images of"
                " one rank; train in one process, or choose another norm"
            )


def is_alone(what: str, field: str, is_asked: bool | None, on_message: Listener) -> bool:
    if ranks.size() == 1:
        return True
    if is_asked:
        raise ConfigError(f"train.{field}: {what} needs a single process; remove the field")
    on_message(f"{what} needs a single process, training without it")
    return False


def use_graphs(spec: ExperimentSpec, device: torch.device, on_message: Listener) -> bool:
    """Return whether each step is replayed as one CUDA graph, and say why if it cannot be."""
    is_wanted = spec.train.graphs
    if is_wanted is None:  # own code may read tensors, which a graph cannot replay
        is_wanted = device.type == "cuda" and not spec.code
    if not is_wanted:
        return False
    if device.type != "cuda":
        raise ConfigError(
            f"train.graphs: CUDA graphs need a CUDA device, not {device.type}; remove the field"
        )
    if not is_alone("a CUDA graph", "graphs", spec.train.graphs, on_message):
        return False
    if spec.train.grad_checkpointing and spec.model.has_random_blocks:
        on_message("a CUDA graph cannot recompute dropout, training without graphs")
        return False
    return True


def compile_task(
    task: Task, batches: Iterable[Batch], autocast: torch.dtype | None, on_message: Listener
) -> bool:
    """Set ``task.network`` to the compiled module, which rounds otherwise; return whether it is.

    The compiled module is tried on a part of the first batch, so that a failure is reported before
    the training. After a failure the training continues without torch.compile.
    """
    module, train = task.module, task.spec.train
    device = next(module.parameters()).device
    if not is_alone("torch.compile", "compile", train.compile, on_message):
        return False
    on_message("compiling the model ...")
    batch = next(iter(batches))
    part = {name: value[: train.batch_size // train.accumulate] for name, value in batch.items()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    prepare_compiler()
    task.network = torch.compile(module, dynamic=False)  # type: ignore[assignment]

    def step() -> None:
        with autocast_to(device, autocast):
            loss = task.losses(part)["loss"]
        loss.backward()

    compiled = _works(step, "training", on_message)
    if not compiled:
        torch._dynamo.reset()
        task.network = module
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])  # undo the changes of running statistics by the trial batch
    module.zero_grad(set_to_none=True)
    return compiled


def compile_batches(task: Task, batches: Iterable[Batch], on_message: Listener) -> None:
    task.augmented_batch = compiled_batch()
    if not _works(lambda: next(iter(batches)), "making batches", on_message):
        task.augmented_batch = augmented_batch


def compiled_batch() -> Callable[..., Batch]:
    """Return ``augmented_batch`` compiled, with the same pixels.

    ``emulate_precision_casts`` also keeps a multiplication and an addition apart. Fused, they would
    round once instead of twice.
    """
    return torch.compile(augmented_batch, dynamic=False, options={"emulate_precision_casts": True})


def _works(run: Callable[[], object], doing: str, on_message: Listener) -> bool:
    try:
        run()
    except Exception as error:  # without a compiler, it goes on uncompiled
        if isinstance(error, torch.OutOfMemoryError) or is_gpu_error(error):
            raise
        reason = str(error).partition("\n")[0]
        on_message(f"torch.compile failed, {doing} without it: {reason}")
        return False
    return True


def prepare_compiler() -> None:
    """Let torch compile as in a new process.

    torch keeps at most eight versions of a function, such as a model's ``forward``, for all models
    of a process together. After that many trainings it would compile nothing any more.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    # The default of Triton 3.9, which warns that it will change. Results must not change with it.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    # torch recommends TF32 wherever fp32 is compiled. Here, --precision tf32 allows it.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    # Without a CUDA toolkit, Triton takes the file that comes with it.
    warnings.filterwarnings("ignore", "CUDA libdevice not found")
