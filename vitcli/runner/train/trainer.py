"""One training of a run folder: the loop over epochs, with its files, clock and hooks."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, Self

from vitcli.core import ranks
from vitcli.core.data.batches import Batch
from vitcli.core.data.source import Images
from vitcli.core.objectives.objective import Outputs
from vitcli.core.train.training import SKIPPED, Step
from vitcli.runner.errors import DivergedError, OwnCodeError, ResourceError, StoppedError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.machine.device import arithmetic
from vitcli.runner.machine.resources import as_resource_error
from vitcli.runner.run.checkpoint import Checkpoint, prune, save_checkpoint
from vitcli.runner.run.folder import steps
from vitcli.runner.train.contract import undrawn
from vitcli.runner.train.exactness import checkpoint_state, refuse_unfit
from vitcli.runner.train.prepare import Plan

KEEP = 2
"""Number of newest checkpoints that are kept."""
SAVE_SHARE = 0.03
"""Largest share of the training time that checkpoints after epochs may take."""
NO_BEST = (-1.0, 0)
"""The best number and its step before the first evaluation."""


class Hook:
    """Is told what a training does. Override what you need.

    ``trainer.run`` is the run folder, ``trainer.records`` the numbers of each epoch so far,
    ``trainer.training`` the weights and optimisers, ``trainer.spec`` the configuration.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step of this process; ``trainer.step`` is above 0 after a resume."""

    def on_step(self, trainer: "Trainer", step: Step) -> None:
        """After each step. Reading a number of ``step.scalars`` waits for the device."""

    def on_epoch(self, trainer: "Trainer", record: dict[str, Any]) -> None:
        """After each epoch: its line of metrics.jsonl is written, and a checkpoint if it was due.

        ``record`` is that line: ``step``, ``epoch``, ``lr``, ``train_loss`` and others. Epoch 0, of
        a probe, has no losses. After a kill, the epochs since the last checkpoint are trained, and
        told, again. With ``trainer.last_epoch = record["epoch"]`` it was the last one.
        """

    def on_end(self, trainer: "Trainer") -> None:
        """After the last epoch, before the result is measured."""

    def on_result(self, trainer: "Trainer", measured: dict[str, float], batch: Batch) -> None:
        """When the test images are measured, before the result is written."""

    def on_stop(self, trainer: "Trainer") -> None:
        """At the end, also after an error; ``trainer.run`` says how it ended."""


class Trainer:
    """Trains a run: takes steps, measures epochs, writes metrics and checkpoints.

    Of several ranks, rank 0 measures and writes, while the others only take their steps.
    """

    def __init__(self, plan: Plan, meta: dict[str, Any], hooks: Sequence[Hook] = ()) -> None:
        self.plan = plan
        self.run = plan.run
        self.meta = meta
        """The content of meta.json."""
        self.hooks = hooks
        self.request = plan.request
        self.training = plan.training
        self.task = plan.training.task
        self.spec = plan.spec
        self.data = plan.data
        self.row = plan.spec.task.row
        self.step_seconds = 0.0
        self.wall_seconds = 0.0
        self.records = list[dict[str, Any]]()
        self.best: tuple[float, int] = NO_BEST
        """Best headline number on the validation split, and its step; 0 is that of the probe."""
        self.epoch = 0
        """Number of epochs that were trained."""
        epochs = plan.spec.train.epochs
        self.last_epoch = min(plan.request.stop_after or epochs, epochs)
        """The epoch, counted from 1, after which the training stops. A hook may lower it."""
        self.stopped_at = 0
        """The last step of a training that ended with its best weights; else 0."""
        self._next_save = 0.0
        self._epoch_began = 0.0
        """When the steps of an epoch began that has not ended; else 0."""
        self._outputs: tuple[int, Outputs] | None = None
        self.check_torch: Callable[[], None] = lambda: None
        """Refuse changes of torch by own code; called before what they made is written."""

    @property
    def step(self) -> int:
        return self.training.step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Write why a training failed. A divergence and a signal are written where they happen."""
        is_lost = isinstance(error, ranks.LostRankError)
        try:
            is_known = isinstance(error, UserError) or (error and as_resource_error(error))
            if error and not is_known and not ranks.own_rank():
                reason = own_code.locate_in_own_code(error)
                if reason or isinstance(error, Exception):  # else Ctrl-C
                    reason = reason or (str(error) if is_lost else own_code.describe_error(error))
                    self.run.set_status("failed", self.run.last_step(), reason)
        finally:
            for hook in self.hooks:
                hook.on_stop(self)
        if is_lost:
            following = self.request.resume_command(self.run)
            raise ResourceError(f"{self.run.path}: {error}. Continue: {following}") from error

    def resume(self) -> None:
        """Restore the state of the plan's checkpoint, if there is one, and the curve up to it."""
        checkpoint, before = self.plan.checkpoint, self.plan.before
        if checkpoint is None or before is None:
            return
        state = checkpoint.state
        with refuse_unfit(self.run, checkpoint.step):
            self.training.load(checkpoint.step, checkpoint.part, state["scaler"])
            self.step_seconds = state["step_seconds"]
            self.wall_seconds = state["wall_seconds"]
            self.best = (state["best"][0], state["best"][1])
        self.records = [record for record in before.metrics if record["step"] <= self.step]
        self.epoch = self.step // self.training.steps_per_epoch
        if not ranks.own_rank():
            self.run.set_metrics(self.records)

    def fit(self) -> None:
        self.begin()
        while self.epoch < self.last_epoch:
            self.train_epoch()
        for hook in self.hooks:
            hook.on_end(self)

    def begin(self) -> None:
        self.training.module.train()
        self._began = time.perf_counter()
        for hook in self.hooks:
            hook.on_start(self)

    def train_epoch(self) -> None:
        """Take the remaining steps of the next epoch; then measure, write and save."""
        training = self.training
        begun_at = self.step
        self._epoch_began = time.perf_counter()
        taken = training.run_epoch(self.epoch)
        with arithmetic(training.precision):
            is_alone = self.spec.code and not self.request.track  # a tracker's thread may draw, too
            with undrawn(self.task) if is_alone else nullcontext():
                first = next(taken)
            for step in chain([first], taken):
                for hook in self.hooks:
                    hook.on_step(self, step)
        ranks.check_weights(training.module.state_dict())
        means = training.take_means()
        seconds = self._count_step_seconds()
        self.refuse_divergence(*means.values())
        self.epoch += 1
        if problem := self.task.diagnose(means):
            self.warn(problem)
        record = {"step": self.step, "epoch": self.epoch, "lr": step.lr}
        record |= {f"train_{name}": means[name] for name in self.row.reports}
        record |= {name: means[name] for name in ("grad_norm", SKIPPED) if name in means}
        images = (self.step - begun_at) * self.spec.train.batch_size
        record["images_per_second"] = images / seconds
        self.close_epoch(record)

    def close_epoch(self, record: dict[str, Any]) -> None:
        """Evaluate if it is time to, write the record, save a checkpoint if it is due.

        Epoch 0, before the first step, is that of a probe.
        """
        if not ranks.own_rank():
            is_last = self.epoch == self.spec.train.epochs
            if is_last or self.epoch % self.spec.train.eval_every == 0:
                record |= self._evaluate(is_last)
            self.records.append(record)
            self.run.set_metrics(self.records)
            self._count_wall_seconds()
            is_due = time.perf_counter() >= self._next_save
            if is_last or is_due or self.best[1] == self.step:
                self.save()
                self.run.set_status("running", self.step)
        # What only shows the training comes after what it continues from.
        for hook in self.hooks:
            hook.on_epoch(self, record)

    def _evaluate(self, is_last: bool) -> dict[str, float]:
        """Measure the validation split; measure the test set last, or if there is no split.

        A training without test images measures its validation split only.
        """
        numbers: dict[str, float] = {}
        if self.data.val:
            val = self.task.measure(self.outputs_of(self.data.val))
            numbers |= {f"val_{name}": val[name] for name in self.row.recorded}
            value = val[self.row.headline.name]
            best, step = self.best
            # Of equal values, that of the probe counts (step 0), or else the later one.
            is_as_good = step > 0 and value == best
            if self.best == NO_BEST or is_as_good or self.row.headline.is_better(value, best):
                self.best = (value, self.step)
        if self.plan.measures_test and (is_last or not self.data.val):
            test = self.task.measure(self.test_outputs())
            numbers |= {f"test_{name}": test[name] for name in self.row.recorded}
        self.refuse_divergence(*numbers.values())
        return numbers

    def test_outputs(self) -> Outputs:
        """Return the task's outputs for the test set; they are computed once per step."""
        if self._outputs is None or self._outputs[0] != self.step:
            self._outputs = (self.step, self.outputs_of(self.data.test))
        return self._outputs[1]

    def outputs_of(self, images: Images) -> Outputs:
        """Return the task's outputs for a split; raise DivergedError if they are not finite."""
        found = self.task.outputs(self.training.evaluated, images)
        outputs = {name: tensor.detach().cpu() for name, tensor in found.items()}
        self.refuse_divergence(*(tensor.sum().item() for tensor in outputs.values()))
        return outputs

    def save(self) -> None:
        self.check_torch()
        began = time.perf_counter()
        progress = {
            "step_seconds": self.step_seconds,
            "wall_seconds": self.wall_seconds,
            "best": list(self.best),
        }
        state = progress | checkpoint_state(self.training)
        try:
            tensors = self.training.tensors()
        except TypeError as error:
            raise OwnCodeError(f"{', '.join(sorted(self.spec.code))}: {error}") from error
        checkpoint = Checkpoint(self.step, tensors, state)
        save_checkpoint(self.run.checkpoints, checkpoint)
        now = time.perf_counter()
        self._next_save = now + (now - began) / SAVE_SHARE
        newest = [step for step in steps(self.run.checkpoints) if step <= self.step][:KEEP]
        prune(self.run.checkpoints, {*newest, self.best[1]} if self.data.val else newest)

    def interrupt(self, number: int) -> None:
        if self._epoch_began:
            self._count_step_seconds()
        self.refuse_divergence(*self.training.sums.tolist())
        if not ranks.own_rank():
            self._count_wall_seconds()
            if self.run.last_step() != self.step:  # saving it again would first unmake it
                self.save()
            self.run.set_status("interrupted", self.step, f"signal {number}")
        raise StoppedError(
            f"stopped at step {self.step} of {self.training.num_steps}; a checkpoint was saved."
            f" Continue: {self.request.resume_command(self.run)}",
            number,
        )

    def refuse_divergence(self, *numbers: float) -> None:
        if all(map(math.isfinite, numbers)):
            return
        self.check_torch()
        # It names the epoch, because the step at which divergence is seen depends on time.
        epoch = max(0, self.step - 1) // self.training.steps_per_epoch + 1
        reason = f"loss, gradient or metric is not finite in epoch {epoch}"
        newest = self.run.last_step()
        if not ranks.own_rank():
            self.run.set_status("diverged", newest, reason)
        kept = "there is no checkpoint yet"
        if steps(self.run.checkpoints):
            kept = f"the checkpoint of step {newest} is kept"
        last = epoch * self.training.steps_per_epoch
        raise DivergedError(
            f"{self.run.path}: diverged: {reason}; {kept}."
            f" Try a lower learning rate: -s optim.lr={self.spec.optim.lr / 3:.1g}"
            f"; see the layers: {self.request.resume_command(self.run)} --replay {last}"
        )

    def warn(self, problem: str) -> None:
        self.request.on_message(f"warning: {problem}")

    def _count_step_seconds(self) -> float:
        seconds = time.perf_counter() - self._epoch_began
        self.step_seconds += seconds
        self._epoch_began = 0.0
        return seconds

    def _count_wall_seconds(self) -> None:
        now = time.perf_counter()
        self.wall_seconds += now - self._began
        self._began = now
