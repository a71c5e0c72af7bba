"""The state of a training: everything that a checkpoint restores, and the steps of an epoch.

The command line and the Python interface train with it. It opens no file and reads no clock.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitcli.core.data.batches import Batch, Rows, num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.nn.attention_rule import after_step
from vitcli.core.randomness import begin_step
from vitcli.core.ranks import Ranks
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.ema import Ema
from vitcli.core.train.fit import Objective, Step, fit, learn
from vitcli.core.train.graph import FixedTensors, Graphs, Tensors
from vitcli.core.train.optim import (
    build_optimizers,
    learning_rates,
    load_state_tensors,
    set_learning_rates,
    set_lr,
    state_tensors,
)
from vitcli.core.train.schedule import planned_factor

SKIPPED = "skipped_steps"
Parts = Callable[[str], dict[str, Tensor]]
"""Name of a part of a checkpoint -> its tensors."""


class TrainableTask(Objective, Protocol):
    """The part of a task that a training uses."""

    ranks: Ranks
    """The processes of the training."""

    @property
    def reports(self) -> tuple[str, ...]:
        """Return the names of the scalars of ``losses``."""

    def batches(self, data: DataSet, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch."""

    def draw_ahead(self, data: DataSet, epoch: int) -> None:
        """Begin to draw an epoch while another one is trained."""

    @property
    def has_rows(self) -> bool:
        """Return whether ``make_batch`` makes the batches from ``rows``."""

    def rows(self, data: DataSet, epoch: int) -> Rows:
        """Return the order and the random parameters of an epoch."""

    def make_batch(self, data: DataSet, rows: Rows) -> Batch:
        """Return the batch of some rows, which are on the device."""


class TrainState:
    """Weights, optimisers, weight average and epoch sums of a training.

    Args:
        spec: The experiment, with every field that follows from the data set.
        task: Its module must be on the device of the data.
        data: The training split is read; batches are on its device.
        autocast: Type of the forward pass; None keeps fp32.
        graphs: Replay each step as one CUDA graph. The device must be CUDA. A graph draws other
            numbers when it recomputes a block, so blocks with dropout must not be recomputed.
        on_message: Is told if a step cannot be a CUDA graph.

    Raises:
        ValueError: The images do not fill one batch.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        task: TrainableTask,
        data: DataSet,
        autocast: torch.dtype | None = None,
        *,
        graphs: bool = False,
        on_message: Callable[[str], None] = warnings.warn,
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
        self.summed = (*task.reports, "grad_norm", *([SKIPPED] if fp16 else []))
        self.sums = self._zeros()
        self._options: dict[str, Any] = {
            "max_grad_norm": spec.optim.max_grad_norm,
            "accumulate": spec.train.accumulate,
            "autocast": autocast,
            "scaler": self.scaler,
            "ranks": task.ranks,
        }
        self._lr_factor = planned_factor(spec, self.steps_per_epoch)
        self._fixed = FixedTensors(self.device)
        self._place = torch.zeros(1, dtype=torch.long, device=self.device)
        """Number of the next step within its epoch, on the device."""
        self.graphs = Graphs(self.optimizers, on_message) if graphs else None

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
        self.task.draw_ahead(self.data, epoch + 1)
        if self.graphs:
            yield from self._replay_epoch(epoch, self.graphs)
            return
        steps = fit(
            self.task,
            self.batches(epoch, self.step - epoch * self.steps_per_epoch),
            self.optimizers,
            self._lr_factor,
            seed=self.spec.seed,
            first_step=self.step,
            **self._options,
        )
        for step in steps:
            self.step = step.step
            if self.ema:
                self.ema.update(self.step)
            self._add(step.scalars)
            yield step

    def _replay_epoch(self, epoch: int, graphs: Graphs) -> Iterator[Step]:
        """Take the steps of ``run_epoch``, each as one CUDA graph.

        The attention's ``after_step`` draws on the host, outside the graph. It changes only tensors
        that are not averaged, so the average has the order of ``fit`` if it copies them again.
        """
        first = self.step - epoch * self.steps_per_epoch
        rows = self.task.rows(self.data, epoch) if self.task.has_rows else {}
        tables = self._fixed.fill({"schedule": self._schedule(epoch)} | rows)
        batches = repeat({}, self.steps_per_epoch - first) if rows else self.batches(epoch, first)
        self._place.fill_(first)
        for batch in batches:
            begin_step(self.device, self.spec.seed, self.step)
            lr = set_lr(self.optimizers, self._lr_factor(self.step))
            scalars = graphs(self._take_step, tables, self._fixed.fill(batch))
            copied = self.ema.versions() if self.ema else []
            after_step(self.module, self.spec.seed, self.step)
            if self.ema and self.ema.versions() != copied:
                self.ema.copy()
            self.step += 1
            yield Step(step=self.step, lr=lr, scalars=scalars)

    def _schedule(self, epoch: int) -> Tensor:
        """Return the learning rates and the average's share for each step of an epoch."""
        rows: list[list[float]] = []
        for step in range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch):
            rates = learning_rates(self.optimizers, self._lr_factor(step))
            rows.append([*rates, self.ema.share(step + 1) if self.ema else 0.0])
        return torch.tensor(rows)

    def _take_step(self, tables: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Take the step at ``_place`` of the epoch. A CUDA graph replays this function.

        Args:
            tables: Row i of ``schedule`` belongs to step i. The other tables are the rows from
                which the task makes its batches; without them, ``batch`` is the batch.
        """
        rows = dict(tables)
        *rates, share = rows.pop("schedule").index_select(0, self._place)[0].unbind()
        set_learning_rates(self.optimizers, rates)
        if rows:
            size = self.spec.train.batch_size
            index = self._place * size + torch.arange(size, device=self.device)
            part = {name: table.index_select(0, index) for name, table in rows.items()}
            batch = self.task.make_batch(self.data, part)
        scalars = learn(batch, self.task, self.optimizers, **self._options)
        if self.ema:
            self.ema.update_by(share)
        self._add(scalars)
        self._place.add_(1)
        return scalars

    def _add(self, scalars: Mapping[str, Tensor]) -> None:
        norm = scalars["grad_norm"]
        if self.scaler:  # fp16 skips a step whose gradient is not finite
            taken = norm.isfinite()
            scalars = {**scalars, "grad_norm": norm.where(taken, 0), SKIPPED: ~taken}
        self.sums += torch.stack([scalars[name].to(self.sums) for name in self.summed])

    def take_means(self) -> dict[str, float]:
        """Return the epoch's mean of each scalar and of the gradient's norm; reset the sums.

        With fp16, ``skipped_steps`` is the number of steps whose gradient was not finite. The
        mean of the norm is that of the other steps.
        """
        sums = dict(zip(self.summed, self.sums.tolist(), strict=True))
        self.sums.zero_()
        means = {name: total / self.steps_per_epoch for name, total in sums.items()}
        if SKIPPED in sums:
            taken = max(1, self.steps_per_epoch - sums[SKIPPED])
            means |= {"grad_norm": sums["grad_norm"] / taken, SKIPPED: sums[SKIPPED]}
        return means

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
        if self.graphs:
            self.graphs.forget()
        self.step = step
        sums = part("progress")["sums"]  # before 0.9.0 without the number of skipped steps
        self.sums.zero_()[: len(sums)].copy_(sums)
