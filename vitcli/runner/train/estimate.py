"""The estimate of a training: its size, its memory and its time, measured on random images."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitcli.core.data.batches import num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.inspect.cost import (
    activation_bytes,
    count_parameters,
    forward_flops,
    parameters_by_part,
)
from vitcli.core.spec import OPTIMIZERS, ExperimentSpec
from vitcli.core.tasks.build import task_class
from vitcli.core.tasks.task import Task
from vitcli.core.train.evaluate import LIMITED
from vitcli.core.train.fit import fit
from vitcli.core.train.optim import build_optimizers
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.config import Experiment, config_text, fit_to_data
from vitcli.runner.experiment.resolve import resolve, shrink_batch
from vitcli.runner.machine.allocator import keep_freed_memory
from vitcli.runner.machine.device import hardware, pick_device, pick_precision
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.machine.resources import resource_errors
from vitcli.runner.text import duration, ignore_message, quantity
from vitcli.runner.train.compile import compile_task

PROBE_IMAGES = 32
PROBE_STEPS = 4
PROBE_SECONDS = 4.0
"""A CPU measures ``PROBE_IMAGES`` per step, unless the steps of whole batches take less time."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Sizes and estimates. The time is measured on a few random images, so it is a rough guide."""

    experiment: Experiment
    spec: ExperimentSpec
    num_train: int
    num_test: int
    parts: dict[str, int]
    parameters: int
    forward_flops: int
    memory_bytes: int
    startup_seconds: float
    """Time until the second step: to compile the model, to take the first step, and so on."""
    train_seconds: float
    """Time of the other steps."""
    evaluation_seconds: float
    hardware: str
    steps_per_epoch: int

    @property
    def seconds(self) -> float:
        """Return the time of the whole training."""
        return self.startup_seconds + self.train_seconds + self.evaluation_seconds

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "num_train": self.num_train,
            "num_val": self.spec.data.val_split,
            "num_test": self.num_test,
            "num_classes": self.spec.model.num_classes,
            "parameters": self.parameters,
            "parameters_by_part": self.parts,
            "forward_flops_per_image": self.forward_flops,
            "steps_per_epoch": self.steps_per_epoch,
            "estimated_memory_bytes": self.memory_bytes,
            "estimated_startup_seconds": self.startup_seconds,
            "estimated_seconds": self.seconds,
            "hardware": self.hardware,
            "config": self.spec.model_dump(mode="json"),
        }

    def as_text(self) -> str:
        width = max(len(part) for part in [*self.parts, "parameters"])
        rows = [f"{part:<{width}}  {count:>12,}" for part, count in self.parts.items()]
        rows += [f"{'parameters':<{width}}  {self.parameters:>12,}", ""]
        rows += [
            f"images         {self._images()}",
            f"steps          {self.steps_per_epoch:,} per epoch,"
            f" {quantity(self.spec.train.epochs, 'epoch')}",
            f"forward pass   {self.forward_flops / 1e9:.3f} GFLOP per image (training: 3 times)",
            f"memory         about {self.memory_bytes / 2**30:.2f} GiB in fp32",
            f"time           about {duration(self.seconds)}:"
            f" {duration(self.startup_seconds)} to start,"
            f" {duration(self.train_seconds)} to train,"
            f" {duration(self.evaluation_seconds)} to evaluate",
            f"measured on    random images, {self.hardware}",
            "",
            config_text(self.spec),
        ]
        return "\n".join(rows).rstrip()

    def _images(self) -> str:
        """Return what is read: the number of images per split, the classes and the size."""
        val, names = self.spec.data.val_split, self.spec.data.class_names or ()
        height, width = self.spec.model.img_size or (0, 0)
        return (
            f"{self.num_train:,} for training,{f' {val:,} for validation,' if val else ''}"
            f" {self.num_test:,} for testing; {len(names)} classes, {height}x{width} pixels"
        )


@resource_errors()
def make_estimate(
    experiment: Experiment,
    device_name: str = "auto",
    data: DataSet | None = None,
    *,
    compile_too: bool = False,
    on_message: Callable[[str], None] = ignore_message,
) -> Estimate:
    """Build the model, count its sizes and time its steps.

    Args:
        experiment: The experiment to train.
        device_name: The device to train on.
        data: The data set; None if it was not read. Its description must then suffice.
        compile_too: Compile the model if the training does. This may take a minute.
        on_message: Receives messages for the user.

    Raises:
        ConfigError: The training would refuse the experiment.
    """
    device = pick_device(device_name)
    spec, num_train, num_test = _resolve(experiment.spec, data)
    spec = shrink_batch(experiment, spec, num_train, on_message)
    assert spec.model.img_size is not None
    assert spec.model.in_chans is not None
    abstract, module = abstract_module(spec), new_module(spec)
    shape = (spec.model.in_chans, *spec.model.img_size)
    encoder = encoder_of(spec, abstract)
    for each in (encoder, encoder_of(spec, module)):
        each.grad_checkpointing = spec.train.grad_checkpointing
    per_image = activation_bytes(encoder, shape)
    try:
        count = num_batches(num_train, spec.train.batch_size)
    except ValueError as error:
        raise ConfigError(f"train.batch_size: {error}") from error
    steps = min(count, spec.train.limit_batches or count)
    first, each_step = step_seconds(module, spec, device, compile_too, on_message)
    forward = each_step / spec.train.batch_size / 3  # a training step is about three forward passes
    return Estimate(
        experiment=experiment,
        spec=spec,
        num_train=num_train,
        num_test=num_test,
        parts=parameters_by_part(module),
        parameters=count_parameters(module),
        forward_flops=forward_flops(encoder, shape),
        memory_bytes=memory_bytes(spec, count_parameters(module), per_image),
        startup_seconds=first,
        train_seconds=each_step * steps * spec.train.epochs,
        evaluation_seconds=forward * evaluated_images(spec, num_test),
        hardware=hardware(device),
        steps_per_epoch=steps,
    )


def _resolve(spec: ExperimentSpec, data: DataSet | None) -> tuple[ExperimentSpec, int, int]:
    """Return the resolved spec and the numbers of training and test images."""
    if data:
        return resolve(spec, data), len(data.train), len(data.test)
    facts = describe_data(spec.data)
    return fit_to_data(spec, facts), facts.num_train, facts.num_test


def evaluated_images(spec: ExperimentSpec, num_test: int) -> int:
    """Return how many images all evaluations of a training read."""
    train, val = spec.train, spec.data.val_split
    most = train.limit_batches * LIMITED if train.limit_batches else max(val, num_test)
    times = math.ceil(train.epochs / train.eval_every)
    each, once = (val, num_test) if val else (num_test, 0)
    return times * min(each, most) + min(once, most)


def memory_bytes(spec: ExperimentSpec, parameters: int, activations: int) -> int:
    """Return the bytes of weights, gradients, optimiser state and one part's activations."""
    copies = 2 + OPTIMIZERS[spec.optim.name].state_copies + (spec.train.ema_decay is not None)
    part = spec.train.batch_size // spec.train.accumulate
    return int(4 * parameters * copies + activations * part)


def step_seconds(
    module: nn.Module,
    spec: ExperimentSpec,
    device: torch.device,
    compile_too: bool,
    on_message: Callable[[str], None],
) -> tuple[float, float]:
    """Return the time of the first training step, with compiling, and of one other step."""
    batch_size = spec.train.batch_size
    autocast = pick_precision(spec.train.precision, device)
    if device.type == "cpu":
        keep_freed_memory()
    module.to(device).train()
    choose_kernels(module, device, autocast, spec.train.wanted_kernels)
    task = task_class(spec)(spec, module)
    count = batch_size if device.type == "cuda" else min(batch_size, PROBE_IMAGES)
    began = time.perf_counter()
    batch = [task.random_batch(count, device)]
    is_compiled = compile_too and compile_task(task, batch, autocast, on_message)
    compiling = time.perf_counter() - began
    first, each = probe(task, spec, count, device, autocast)
    whole = each * batch_size / count
    if count < batch_size and not is_compiled and whole * (PROBE_STEPS + 1) < PROBE_SECONDS:
        _, whole = probe(task, spec, batch_size, device, autocast)
    return compiling + first, whole


def probe(
    task: Task,
    spec: ExperimentSpec,
    count: int,
    device: torch.device,
    autocast: torch.dtype | None,
) -> tuple[float, float]:
    """Return the time of the first step on random images, and the shortest of a few others."""
    seconds = [time.perf_counter()]
    steps = fit(
        task,
        [task.random_batch(count, device)] * (PROBE_STEPS + 1),
        build_optimizers(task.module, spec.optim),
        lambda step: 0.0,
        accumulate=spec.train.accumulate if count == spec.train.batch_size else 1,
        max_grad_norm=spec.optim.max_grad_norm,
        autocast=autocast,
    )
    for _ in steps:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter())
    first, *others = [after - before for before, after in itertools.pairwise(seconds)]
    return first, min(others)
