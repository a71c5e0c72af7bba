"""The state of a training: everything that a checkpoint restores, and the steps of an epoch.

The command line and the Python interface train with it. It opens no file and reads no clock.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.ema import Ema
from vitcli.core.train.fit import Objective, Step, fit
from vitcli.core.train.optim import build_optimizers, load_state_tensors, state_tensors
from vitcli.core.train.schedule import lr_factor

Parts = Callable[[str], dict[str, Tensor]]
"""Name of a part of a checkpoint -> its tensors."""


class TrainableTask(Objective, Protocol):
    """The part of a task that a training uses."""

    module: nn.Module
    """Everything that is trained and saved."""

    @property
    def reports(self) -> tuple[str, ...]:
        """Return the names of the scalars of ``losses``."""

    def batches(self, data: DataSet, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch."""


class TrainState:
    """Weights, optimisers, weight average and epoch sums of a training.

    Args:
        spec: The experiment, with every field that follows from the data set.
        task: Its module must be on the device of the data.
        data: The training split is read; batches are on its device.
        autocast: Type of the forward pass; None keeps fp32.

    Raises:
        ValueError: The images do not fill one batch.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        task: TrainableTask,
        data: DataSet,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.spec, self.task, self.data, self.autocast = spec, task, data, autocast
        self.module = task.module
        self.device = data.train.pixels.device
        count = num_batches(len(data.train), spec.train.batch_size)
        self.steps_per_epoch = min(count, spec.train.limit_batches or count)
        self.optimizers = build_optimizers(self.module, spec.optim)
        fp16 = autocast is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type) if fp16 else None
        decay = spec.train.ema_decay
        self.ema = Ema(self.module, decay) if decay is not None else None
        self.step = 0
        self.summed = (*task.reports, "grad_norm")
        self.sums = self._zeros()

    def _zeros(self) -> Tensor:
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.zeros(len(self.summed), dtype=wide, device=self.device)

    @property
    def num_steps(self) -> int:
        """Return the number of steps of the whole training."""
        return self.steps_per_epoch * self.spec.train.epochs

    @property
    def evaluated_module(self) -> nn.Module:
        """Return the module to evaluate: the weight average if there is one."""
        return self.ema.model if self.ema else self.module

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch, from ``first_batch`` on."""
        batches = self.task.batches(self.data, epoch, first_batch)
        for _, batch in zip(range(first_batch, self.steps_per_epoch), batches, strict=False):
            yield batch

    def run_epoch(self, epoch: int) -> Iterator[Step]:
        """Take the remaining steps of an epoch, and yield after each step."""
        optim = self.spec.optim
        factor = partial(
            lr_factor,
            schedule=optim.schedule,
            warmup_steps=round(optim.warmup_epochs * self.steps_per_epoch),
            num_steps=self.num_steps,
            min_ratio=optim.min_lr_ratio,
        )
        steps = fit(
            self.task,
            self.batches(epoch, self.step - epoch * self.steps_per_epoch),
            self.optimizers,
            factor,
            seed=self.spec.seed,
            first_step=self.step,
            max_grad_norm=optim.max_grad_norm,
            accumulate=self.spec.train.accumulate,
            autocast=self.autocast,
            scaler=self.scaler,
        )
        for step in steps:
            self.step = step.step
            if self.ema:
                self.ema.update(self.step)
            self._add(step)
            yield step

    def _add(self, step: Step) -> None:
        values = torch.stack([step.scalars[name].to(self.sums) for name in self.summed])
        if self.scaler and not values[-1].isfinite():  # fp16 skips this step
            values[-1] = 0
        self.sums += values

    def take_means(self) -> dict[str, float]:
        """Return the epoch's mean of each scalar and of the gradient's norm; reset the sums."""
        means = [total / self.steps_per_epoch for total in self.sums.tolist()]
        self.sums = self._zeros()
        return dict(zip(self.summed, means, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that a checkpoint holds, by name."""
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        tensors["progress.sums"] = self.sums
        if self.ema:
            tensors |= {f"ema.{k}": v for k, v in self.ema.model.state_dict().items()}
        return tensors | {f"optim.{k}": v for k, v in state_tensors(self.optimizers).items()}

    def load(self, step: int, part: Parts, scaler: Mapping[str, object] | None) -> None:
        """Restore the tensors that ``tensors`` returned after ``step``.

        Raises:
            RuntimeError: The tensors belong to another model.
            ValueError: The tensors belong to other optimisers.
        """
        self.module.load_state_dict(part("model"))
        if self.ema:
            self.ema.model.load_state_dict(part("ema"))
        load_state_tensors(self.optimizers, part("optim"))
        if self.scaler:
            self.scaler.load_state_dict(dict(scaler or {}))
        self.step = step
        self.sums = part("progress")["sums"].to(self.sums)
