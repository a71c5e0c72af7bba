"""An experiment's model with random pixels, for benchmarks that need no data set."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from vitcli.core.data.batches import num_batches, train_batches
from vitcli.core.data.source import Images
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.classify import Classify
from vitcli.core.train.ema import Ema
from vitcli.core.train.fit import Batch, fit
from vitcli.core.train.optim import build_optimizers
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import new_model
from vitcli.runner.experiment.config import Experiment, fit_to_data
from vitcli.runner.machine.allocator import keep_freed_memory
from vitcli.runner.machine.device import (
    compile_model,
    hardware,
    pick_device,
    pick_precision,
    precision_name,
)
from vitcli.runner.machine.kernels import choose_kernels

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
    model: ImageModel
    kernels: str

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

    def images(self) -> Images:
        """Return as many random images as the training set has, limited to save time.

        The limit is MOST_IMAGES, or one batch.
        """
        generator = torch.Generator().manual_seed(0)
        count = min(self.info.num_train, max(MOST_IMAGES, self.spec.train.batch_size))
        pixels = torch.randint(
            256, (count, *self.image_shape), dtype=torch.uint8, generator=generator
        )
        labels = torch.randint(len(self.info.class_names), (count,), generator=generator)
        return Images(pixels, labels).to(self.device)

    def batches(self) -> Iterator[Batch]:
        """Yield batches without end, with the experiment's augmentation."""
        images, data, epoch = self.images(), self.spec.data, 0
        while True:
            yield from train_batches(
                images,
                data.augment,
                mean=data.mean or (GREY,) * self.info.in_chans,
                std=data.std or (SPREAD,) * self.info.in_chans,
                num_classes=len(self.info.class_names),
                batch_size=self.spec.train.batch_size,
                seed=self.spec.seed,
                epoch=epoch,
            )
            epoch += 1

    def network(self, on_message: Callable[[str], None]) -> nn.Module:
        """Return the model as ``vitcli train`` runs it, compiled on the same devices."""
        if not self.spec.train.compiles_on(self.device.type):
            return self.model
        part = self.spec.train.batch_size // self.spec.train.accumulate
        images = next(self.batches())["images"][:part]
        return compile_model(self.model, images, self.autocast, on_message)

    def training(self, network: nn.Module) -> Iterator[object]:
        """Take optimiser steps without end, with data and weight average."""
        optimizers = build_optimizers(self.model, self.spec.optim)
        decay = self.spec.train.ema_decay
        ema = Ema(self.model, decay) if decay is not None else None
        steps = fit(
            Classify(network, self.spec.train.label_smoothing),
            self.batches(),
            optimizers,
            lambda step: 1e-3,  # a small rate, so that long measurements do not diverge
            max_grad_norm=self.spec.optim.max_grad_norm,
            accumulate=self.spec.train.accumulate,
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
    model = new_model(spec).to(device).train()
    model.grad_checkpointing = spec.train.grad_checkpointing
    autocast = pick_precision(spec.train.precision, device)
    kernels = choose_kernels(model, device, autocast, spec.train.wanted_kernels, on_message)
    return Workload(experiment.name, spec, info, device, autocast, model, kernels)
