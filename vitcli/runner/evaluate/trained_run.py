"""A trained run with its data set, ready to be measured."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import describe_other_images


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run, its trained module and its data set."""

    run: RunDir
    spec: ExperimentSpec
    """The experiment; ``train.limit_batches`` is that of the measurement."""
    module: nn.Module
    data: DataSet
    device: torch.device

    def task(self, module: nn.Module | None = None) -> Task:
        return task_class(self.spec)(self.spec, module or self.module)

    def images(self, split: str) -> Images:
        """Return the images of a split (test, val or train) on the device."""
        data, model = self.data, self.spec.model
        images = {"test": data.test, "val": data.val, "train": data.train}[split]
        if images is None:
            raise ConfigError(
                f"{self.run.name} was trained without a validation split (data.val_split)"
            )
        if data.img_size != model.img_size or data.in_chans != model.in_chans:
            raise InputError(
                f"{self.run.name} takes images of {model.img_size}, but {self.spec.data.name} now"
                f" has {data.img_size}"
            )
        return images.to(self.device)


def load_trained_run(
    name: str,
    *,
    step: int | None,
    device: str,
    data_dir: Path | None,
    offline: bool,
    limit_batches: int | None,
    on_message: Callable[[str], None],
) -> TrainedRun:
    """Read a run's weights and its data set; the arguments are those of ``evaluate_run``."""
    run = find_run(name)
    spec = run.spec()
    where = pick_device(device)
    module = load_module(run, spec, str(where), step, on_message)
    data = load_data(
        spec.data,
        data_dir=data_dir,
        offline=offline,
        extras=spec.task.extras,
        seed=spec.seed,
        on_message=on_message,
    )
    if problem := describe_other_images(run.read("meta.json").get("data_hash"), data):
        on_message(f"note: {run.name} was trained on {problem}")
    spec = spec.replace(train=spec.train.replace(limit_batches=limit_batches))
    found = TrainedRun(run=run, spec=spec, module=module, data=data, device=where)
    try:
        found.task().check_data(data)
    except ValueError as error:
        raise InputError(f"{run.name}: {error}") from error
    return found
