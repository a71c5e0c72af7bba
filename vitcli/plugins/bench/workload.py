"""An experiment's model with random pixels, for benchmarks that need no data set."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.training import Step, Training
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import describe_spec, steps_per_epoch
from vitcli.runner.machine.device import hardware, pick_device
from vitcli.runner.train.build import build_training
from vitcli.runner.train.flops import random_data, with_statistics

MOST_IMAGES = 10_000
RATE = 1e-3
"""Factor of the learning rates: weights must not grow while the clock runs."""


@dataclass(frozen=True)
class Workload:
    """A training of an experiment on random images in the shape of its data."""

    name: str
    info: DataInfo
    training: Training

    @property
    def spec(self) -> ExperimentSpec:
        return self.training.spec

    @property
    def device(self) -> torch.device:
        return self.training.device

    @property
    def setting(self) -> str:
        kernels = ", native kernels" if self.training.kernels == "native" else ""
        return (
            f"{self.name} on {self.device} ({hardware(self.device)}),"
            f" {self.training.precision}{kernels}, batch {self.spec.train.batch_size}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.info.in_chans, *self.info.img_size)

    def batches(self) -> Iterator[Batch]:
        """Yield training batches without end, augmented as the experiment says."""
        for epoch in itertools.count():
            yield from self.training.task.batches(self.training.data, epoch)

    def steps(self) -> Iterator[Step]:
        return itertools.chain.from_iterable(map(self.training.run_epoch, itertools.count()))

    @property
    def steps_per_epoch(self) -> int:
        return num_batches(self.info.num_train, self.spec.train.batch_size)


def make_workload(
    experiment: Experiment, device_name: str, on_message: Callable[[str], None]
) -> Workload:
    """Build a training as ``vitcli train`` does, uncompiled, on at most ``MOST_IMAGES`` images."""
    device, info = pick_device(device_name), describe_data(experiment.spec.data)
    spec = with_teacher(experiment.spec, required=False)
    spec = with_statistics(describe_spec(spec))
    steps_per_epoch(spec, info.num_train)
    count = min(info.num_train, max(MOST_IMAGES, spec.train.batch_size))
    data = random_data(spec, count, device)
    training = build_training(spec, new_module(spec).train(), data, on_message)
    for optimizer in training.optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] *= RATE
    return Workload(experiment.name, info, training)
