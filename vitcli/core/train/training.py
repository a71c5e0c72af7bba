"""A training: built once, with one step in one order.

The command line, the Python interface, the dry run and the benchmarks train with it. It opens no
file and reads no clock, and a step does not wait for the device.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

import torch
from torch import Tensor, nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet
from vitcli.core.nn.attention import before_step
from vitcli.core.objectives.objective import Task
from vitcli.core.randomness import seed_step
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import autocast_to
from vitcli.core.train import optim
from vitcli.core.train.ema import Ema
from vitcli.core.train.executor import Graphs, Tensors
from vitcli.core.train.schedule import lr_factor

SKIPPED, RATES = "skipped_steps", "rates"
Parts = Callable[[str], dict[str, Tensor]]
"""Name of a part of a checkpoint -> its tensors."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The report of one step."""

    step: int
    """Number of steps so far, including this one."""
    lr: float
    """Learning rate of the last optimiser, which follows ``optim.lr``."""
    scalars: dict[str, Tensor]
    """Scalars on the device; the caller decides when to read them with ``.item()``."""


class Training:
    """Weights, optimisers, average of weights and epoch sums: all that a checkpoint restores.

    The module of the task is on the device of the data. ``autocast`` is the type of the forward
    pass; None keeps fp32, and fp16 scales the loss. ``graphs`` replays each step as one CUDA graph,
    which draws other numbers when it recomputes a block: no block with dropout may be recomputed.
    """

    precision = "fp32"
    kernels = "torch"
    compiled = False
    """Whether the module is compiled, which changes the rounding."""

    def __init__(
        self,
        spec: ExperimentSpec,
        task: Task,
        data: DataSet,
        autocast: torch.dtype | None = None,
        *,
        graphs: bool = False,
        on_message: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.spec, self.task, self.data, self.autocast = spec, task, data, autocast
        self.module, task.autocast = task.module, autocast
        self.device = data.train.pixels.device
        count = num_batches(len(data.train), spec.train.batch_size)
        self.steps_per_epoch = min(count, spec.train.limit_batches or count)
        trained = (p for p in self.module.parameters() if p.requires_grad)
        self.parameters = sum(p.numel() for p in trained)
        """Number of all parameters, frozen or not."""
        if spec.train.freeze is not None:
            optim.freeze(self.module, spec.train.freeze)
        self.optimizers = optim.build_optimizers(self.module, spec.optim)
        fp16 = autocast is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type) if fp16 else None
        decay = spec.train.ema_decay
        self.ema = Ema(self.module, decay) if decay is not None else None
        self.evaluated: nn.Module = self.evaluated_module
        """What evaluations call: ``evaluated_module``, compiled or not."""
        self.step = 0
        self._has_compared = False
        """Whether the ranks have compared the shapes of their gradients."""
        self.summed = (*spec.task.row.reports, "grad_norm", *([SKIPPED] if fp16 else []))
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        self.sums = torch.zeros(len(self.summed), dtype=wide, device=self.device)
        self._has_rows = task.has_rows
        """Whether a graph makes its batches itself."""
        self.graphs = Graphs(self.optimizers, on_message) if graphs else None
        self._place = torch.zeros(1, dtype=torch.long, device=self.device)
        """Number of the next step within its epoch, on the device. Graphs read it."""

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.spec.train.epochs

    @property
    def evaluated_module(self) -> nn.Module:
        """Return the module to evaluate: the average of weights if there is one."""
        return self.ema.model if self.ema else self.module

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        batches = self.task.batches(self.data, epoch, first_batch)
        return islice(batches, self.steps_per_epoch - first_batch)

    def run_epoch(self, epoch: int) -> Iterator[Step]:
        """Take the remaining steps of an epoch, and yield after each step.

        The random draws of step s, such as dropout, are a function of (seed, s). Therefore a
        resumed run needs no saved random state.
        """
        self.task.draw_ahead(self.data, epoch + 1)
        first = self.step - epoch * self.steps_per_epoch
        tables = self._fill_tables(epoch, first) if self.graphs else {}
        makes_batches = self.graphs and self._has_rows
        left: Iterable[Batch] = repeat({}, self.steps_per_epoch - first)
        for batch in left if makes_batches else self.batches(epoch, first):
            seed_step(self.device, self.spec.seed, self.step, ranks.own_rank())
            before_step(self.module, self.spec.seed, self.step)
            rates = self.rates(self.step)
            if self.graphs:
                scalars = self.graphs(self._take_planned_step, tables, self.graphs.fill(batch))
            else:
                scalars = self.take_step(batch, rates)
            self.step += 1
            yield Step(step=self.step, lr=rates[-1], scalars=scalars)

    def rates(self, step: int) -> list[float]:
        """Return the share of the weights in their average, and the learning rate of each group."""
        share = self.ema.share(step + 1) if self.ema else 0.0
        groups = [group for each in self.optimizers for group in each.param_groups]
        plan = self.spec.optim
        factor = lr_factor(
            step,
            schedule=plan.schedule,
            warmup_steps=round(plan.warmup_epochs * self.steps_per_epoch),
            num_steps=self.num_steps,
            min_ratio=plan.min_lr_ratio,
        )
        return [share, *(group["peak_lr"] * factor for group in groups)]

    def take_step(self, batch: Batch, rates: Sequence[float | Tensor]) -> dict[str, Tensor]:
        """Change the weights by the rows of this process; return its scalars and ``grad_norm``.

        The host decides nothing and waits for nothing, so a CUDA graph can replay this.
        """
        share, *learning = rates
        optim.set_learning_rates(self.optimizers, learning)
        scalars = self._backward(batch)
        norm = optim.update(self.optimizers, self.spec.optim.max_grad_norm, self.scaler)
        scalars["grad_norm"] = norm
        self.task.after_step()
        if self.ema:
            self.ema.update(share)
        summands = scalars
        if self.scaler:  # fp16 skips a step whose gradient is not finite
            taken = norm.isfinite()
            summands = {**scalars, "grad_norm": norm.where(taken, 0), SKIPPED: ~taken}
        self.sums += torch.stack([summands[name].to(self.sums) for name in self.summed])
        return scalars

    def _backward(self, batch: Batch) -> dict[str, Tensor]:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        count, totals = self.spec.train.accumulate, dict[str, Tensor]()
        parts = {name: value.chunk(count) for name, value in batch.items()}
        for number in range(count):
            part = {name: chunks[number] for name, chunks in parts.items()}
            with autocast_to(self.device, self.autocast):
                scalars = self.task.losses(part)
            loss = scalars["loss"] / count
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            for name, value in scalars.items():
                own = value.detach() / count
                totals[name] = totals[name] + own if name in totals else own
        found = optim.gradients(self.optimizers)
        if not self._has_compared:
            ranks.check_equal(hash(tuple(each.shape for each in found)), "gradients")
            self._has_compared = True
        return ranks.average(found, totals)

    def _fill_tables(self, epoch: int, first: int) -> dict[str, Tensor]:
        assert self.graphs
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        tables = {RATES: torch.tensor([self.rates(step) for step in steps])}
        self._place.fill_(first)
        rows = self.task.rows(self.data, epoch) if self._has_rows else {}
        return self.graphs.fill(tables | rows)

    def _take_planned_step(self, tables: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Take the step at ``_place`` of the epoch. A CUDA graph replays this function.

        Row i of ``rates`` belongs to step i. The other tables are the rows from which the task
        makes its batches; without them, ``batch`` is the batch.
        """
        rows = dict(tables)
        rates = rows.pop(RATES).index_select(0, self._place)[0].unbind()
        if rows:
            size = self.spec.train.batch_size
            index = self._place * size + torch.arange(size, device=self.device)
            part = {name: table.index_select(0, index) for name, table in rows.items()}
            batch = self.task.make_batch(self.data, part)
        scalars = self.take_step(batch, rates)
        self._place.add_(1)
        return scalars

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
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        tensors["progress.sums"] = self.sums
        if self.ema:
            tensors |= {f"ema.{k}": v for k, v in self.ema.model.state_dict().items()}
        return tensors | {f"optim.{k}": v for k, v in optim.state_tensors(self.optimizers).items()}

    def load(self, step: int, part: Parts, scaler: Mapping[str, object] | None) -> None:
        """Restore the tensors that ``tensors`` returned after ``step``."""
        self.module.load_state_dict(part("model"))
        if self.ema:
            self.ema.model.load_state_dict(part("ema"))
        optim.load_state_tensors(self.optimizers, part("optim"))
        if self.scaler:
            self.scaler.load_state_dict(dict(scaler or {}))
        if self.graphs:
            self.graphs.forget()
        self.step = step
        sums = part("progress")["sums"]  # before 1.0.0 without the number of skipped steps
        self.sums.zero_()[: len(sums)].copy_(sums)
