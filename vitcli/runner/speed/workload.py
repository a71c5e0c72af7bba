"""An experiment's model with random pixels, for benchmarks that need no data set."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import describe_spec, steps_per_epoch
from vitcli.runner.machine.allocator import keep_freed_memory
from vitcli.runner.machine.arithmetic import arithmetic, chosen_kernels
from vitcli.runner.machine.device import (
    hardware,
    move_module,
    name_precision,
    pick_device,
    pick_precision,
)
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.train.compile import compile_batches, compile_task
from vitcli.runner.train.rehearsal import random_data, rehearse, with_statistics

MOST_IMAGES = 10_000
RATE = 1e-3
"""Factor of the learning rates: weights must not grow while the clock runs."""


@dataclass(frozen=True)
class Workload:
    """Model of an experiment on a device, with random images in the shape of its data."""

    name: str
    spec: ExperimentSpec
    info: DataInfo
    device: torch.device
    precision: str
    task: Task
    kernels: str

    @property
    def autocast(self) -> torch.dtype | None:
        return pick_precision(self.precision, self.device)

    @property
    def encoder(self) -> ImageModel:
        """Return the image model that is trained."""
        return type(self.task).encoder(self.task.module)

    @property
    def setting(self) -> str:
        """Text such as ``cifar10-tiny on cpu (...), bf16, native kernels, batch 128``."""
        kernels = ", native kernels" if self.kernels == "native" else ""
        return (
            f"{self.name} on {self.device} ({hardware(self.device)}),"
            f" {self.precision}{kernels}, batch {self.spec.train.batch_size}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.info.in_chans, *self.info.img_size)

    def data(self) -> DataSet:
        """Return random images, as many as the training set has, but at most ``MOST_IMAGES``."""
        count = min(self.info.num_train, max(MOST_IMAGES, self.spec.train.batch_size))
        return random_data(self.spec, count, self.device)

    def batches(self) -> Iterator[Batch]:
        """Yield training batches without end, augmented as the experiment says."""
        data = self.data()
        for epoch in itertools.count():
            yield from self.task.batches(data, epoch)

    def compile(self, on_message: Callable[[str], None]) -> None:
        """Compile the model and the batches if ``vitcli train`` would."""
        compiled = compile_task(self.task, self.batches(), self.autocast, on_message)
        if compiled and self.device.type == "cuda":
            compile_batches(self.task, self.batches(), on_message)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Compute in the block with the settings of a training step."""
        with (
            chosen_kernels(self.device, self.spec.train.deterministic),
            arithmetic(self.precision),
        ):
            yield

    def training(self, on_message: Callable[[str], None]) -> Iterator[object]:
        """Take optimiser steps without end, data and weight average included."""
        return rehearse(self.task, self.data(), self.autocast, RATE, on_message)

    @property
    def steps_per_epoch(self) -> int:
        return num_batches(self.info.num_train, self.spec.train.batch_size)


def make_workload(
    experiment: Experiment, device_name: str, on_message: Callable[[str], None]
) -> Workload:
    """Build the model of an experiment as ``vitcli train`` does.

    Raises:
        ConfigError: The training set does not fill one batch.
    """
    device = pick_device(device_name)
    if device.type == "cpu":
        keep_freed_memory()
    info = describe_data(experiment.spec.data)
    spec = describe_spec(experiment.spec)
    steps_per_epoch(spec, info.num_train)
    spec = with_statistics(spec)
    module = move_module(new_module(spec), device, spec.model).train()
    encoder_of(spec, module).grad_checkpointing = spec.train.grad_checkpointing
    precision = name_precision(spec.train.precision, device)
    autocast = pick_precision(precision, device)
    kernels = choose_kernels(module, device, autocast, spec.train.wanted_kernels, on_message)
    task = task_class(spec)(spec, module)
    return Workload(experiment.name, spec, info, device, precision, task, kernels)
