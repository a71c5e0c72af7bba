"""An experiment's model with random pixels, for benchmarks that need no data set."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet, Images
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.build import task_class
from vitcli.core.tasks.task import Task
from vitcli.core.train.ema import Ema
from vitcli.core.train.fit import fit
from vitcli.core.train.optim import build_optimizers
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import encoder_of, new_module
from vitcli.runner.experiment.config import Experiment, fit_to_data
from vitcli.runner.machine.allocator import keep_freed_memory
from vitcli.runner.machine.device import (
    hardware,
    pick_device,
    pick_precision,
    precision_name,
)
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.train.compile import compile_task

MOST_IMAGES = 10_000
GREY, SPREAD = 0.5, 0.25
"""Mean and standard deviation for random pixels, unless the experiment has its own."""


@dataclass(frozen=True)
class Workload:
    """Model of an experiment on a device, with random images in the shape of its data."""

    name: str
    spec: ExperimentSpec
    info: DataInfo
    device: torch.device
    autocast: torch.dtype | None
    task: Task
    kernels: str

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
            f" {precision_name(self.autocast)}{kernels}, batch {self.spec.train.batch_size}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.info.in_chans, *self.info.img_size)

    def data(self) -> DataSet:
        """Return random images, as many as the training set has, but at most ``MOST_IMAGES``."""
        generator = torch.Generator().manual_seed(0)
        count = min(self.info.num_train, max(MOST_IMAGES, self.spec.train.batch_size))
        pixels = torch.randint(
            256, (count, *self.image_shape), dtype=torch.uint8, generator=generator
        )
        labels = torch.randint(len(self.info.class_names), (count,), generator=generator)
        images = Images(pixels, labels).to(self.device)
        assert self.spec.data.mean is not None
        assert self.spec.data.std is not None
        return DataSet(
            name=self.spec.data.name,
            class_names=self.info.class_names,
            train=images,
            test=images,
            mean=self.spec.data.mean,
            std=self.spec.data.std,
            data_hash="",
        )

    def batches(self) -> Iterator[Batch]:
        """Yield training batches without end, augmented as the experiment says."""
        data = self.data()
        for epoch in itertools.count():
            yield from self.task.batches(data, epoch)

    def compile(self, on_message: Callable[[str], None]) -> None:
        """Compile the model if ``vitcli train`` would."""
        compile_task(self.task, self.batches(), self.autocast, on_message)

    def training(self) -> Iterator[object]:
        """Take optimiser steps without end, data and weight average included."""
        module, train = self.task.module, self.spec.train
        ema = Ema(module, train.ema_decay) if train.ema_decay is not None else None
        steps = fit(
            self.task,
            self.batches(),
            build_optimizers(module, self.spec.optim),
            lambda step: 1e-3,  # weights must not grow while the clock runs
            max_grad_norm=self.spec.optim.max_grad_norm,
            accumulate=train.accumulate,
            autocast=self.autocast,
        )
        for step in steps:
            if ema:
                ema.update(step.step)
            yield step

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
    spec = fit_to_data(experiment.spec, info)
    try:
        num_batches(info.num_train, spec.train.batch_size)
    except ValueError as error:
        raise ConfigError(f"train.batch_size: {error}") from error
    channels = info.in_chans
    spec = spec.replace(
        data=spec.data.replace(
            mean=spec.data.mean or (GREY,) * channels, std=spec.data.std or (SPREAD,) * channels
        )
    )
    module = new_module(spec).to(device).train()
    encoder_of(spec, module).grad_checkpointing = spec.train.grad_checkpointing
    autocast = pick_precision(spec.train.precision, device)
    kernels = choose_kernels(module, device, autocast, spec.train.wanted_kernels, on_message)
    task = task_class(spec)(spec, module)
    return Workload(experiment.name, spec, info, device, autocast, task, kernels)
