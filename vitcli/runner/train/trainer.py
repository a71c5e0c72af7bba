"""One training of a run folder: the loop over epochs, with its files, clock and events."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vitcli.core import ranks
from vitcli.core.data.source import Images
from vitcli.core.objectives.objective import Outputs
from vitcli.core.torch_use import to_host
from vitcli.core.train.training import SKIPPED, Step
from vitcli.runner.errors import ConfigError, DivergedError, InputError, StoppedError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.experiment.diff import Change
from vitcli.runner.machine.arithmetic import arithmetic
from vitcli.runner.run.checkpoint import Checkpoint, load_checkpoint, prune, save_checkpoint
from vitcli.runner.run.compare import compared_settings
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.record import RunRecord, headline_curve, read_record
from vitcli.runner.text import ignore_message, printable, quantity
from vitcli.runner.train.build import BuiltTraining
from vitcli.runner.train.events import EpochDone, Event, Progress, Started
from vitcli.runner.train.exactness import describe_jump, environment_changes, numerical_environment
from vitcli.runner.train.signals import StopFlag

if TYPE_CHECKING:
    from vitcli.runner.run.tensorboard import Board

KEEP = 2
"""Number of newest checkpoints that are kept."""
SAVE_SHARE = 0.03
"""Largest share of the training time that checkpoints after epochs may take."""
REPORT_SECONDS = 0.5
NO_BEST = (-1.0, 0)
"""The best number and its step before the first evaluation."""
NUM_ATTENTION_IMAGES = 10
"""Approximate number of times per run that the attention and the task's pictures are drawn."""


@dataclass(kw_only=True)
class Trainer:
    """Trains a run: takes steps, measures epochs, writes metrics and checkpoints."""

    built: BuiltTraining
    run: RunDir
    resume_command: str
    measures_test: bool = True
    """Whether ``data.test`` holds test images; in a search it does not."""
    on_event: Callable[[Event], None] = ignore_message
    on_message: Callable[[str], None] = ignore_message

    def __post_init__(self) -> None:
        built = self.built
        self.training, self.task, self.spec = built.training, built.task, built.spec
        self.data, self.device, self.row = built.data, built.device, built.spec.task.row
        self.step_seconds = 0.0
        self.wall_seconds = 0.0
        self.records, self._records_after_best = list[dict[str, Any]](), list[dict[str, Any]]()
        self.best: tuple[float, int] = NO_BEST
        """Best headline number on the validation split, and its step; 0 is that of the probe."""
        self.last_epoch = self.spec.train.epochs
        """The epoch, counted from 1, after which the training stops."""
        self.stopped_at = 0
        """The last step of a training that ended with its best weights; else 0."""
        self.lost_events = ""
        """Why TensorBoard's event file is incomplete; empty if it is complete."""
        self._warned: set[str] = set()
        self._next_save = 0.0
        self._board: Board | None = None
        self._outputs: tuple[int, Outputs] | None = None
        self.first_images: torch.Tensor | None = None
        """The first images of the training as the model reads them, (B, C, H, W)."""
        self.forward_flops = 0
        """Operations of an image's forward pass."""
        self.flops_of: Callable[[int], tuple[int, int]]
        """Number of steps -> their operations, and those of the teacher in them."""
        self.record: RunRecord
        """What the folder said at the beginning of this training."""
        self._settings: dict[str, Any] = {}
        self._model_hash = model_hash(self.spec.model)
        self._environment = numerical_environment(self.device, built.compiled, built.num_ranks)

    @property
    def step(self) -> int:
        return self.training.step

    def checkpoint(self) -> Checkpoint:
        """Return everything that is needed to continue the training."""
        scaler = self.training.scaler
        state = {
            "step_seconds": self.step_seconds,
            "wall_seconds": self.wall_seconds,
            "best": list(self.best),
            "scaler": scaler.state_dict() if scaler else None,
            "precision": self.built.precision,
            "kernels": self.built.kernels,
            "weights": "ema" if self.training.ema else "model",
            "circumstances": self._environment,
            "model": self._model_hash,
        }
        return Checkpoint(self.step, self.training.tensors(), state)

    def changes_since(self, checkpoint: Checkpoint) -> dict[str, Change]:
        """Return what has changed in the environment since a checkpoint: name -> (then, now)."""
        if checkpoint.step > self.training.num_steps:
            done = checkpoint.step // self.training.steps_per_epoch
            raise ConfigError(f"train.epochs: this run already has {quantity(done, 'epoch')}")
        here = self._environment, self.built.precision, self._model_hash
        return environment_changes(checkpoint.state, *here)

    def facts(self) -> dict[str, Any]:
        """Return what must be the same on all ranks."""
        return self._environment | {
            "precision": self.built.precision,
            "kernels": self.built.kernels,
        }

    def restore(self, checkpoint: Checkpoint, metrics: Sequence[dict[str, Any]]) -> None:
        """Restore the state of a checkpoint and the metrics up to its step. Write no file.

        A message says if the learning rate rises, because the configuration has changed.
        """
        stored = checkpoint.state
        try:
            self.training.load(checkpoint.step, checkpoint.part, stored["scaler"])
            self.step_seconds = stored["step_seconds"]
            self.wall_seconds = stored["wall_seconds"]
            self.best = (stored["best"][0], stored["best"][1])
        except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
            where = self.run.checkpoints / str(checkpoint.step)
            raise InputError(f"{where} does not fit config.yaml: {error}") from error
        self.records = [record for record in metrics if record["step"] <= self.step]
        per_epoch = self.training.steps_per_epoch
        if jump := describe_jump(self.run.spec(), self.spec, self.step, per_epoch):
            self.on_message(jump)

    def save(self) -> None:
        """Write a checkpoint, then remove the checkpoints that are not kept."""
        began = time.perf_counter()
        save_checkpoint(self.run.checkpoints, self.checkpoint())
        now = time.perf_counter()
        self._next_save = now + (now - began) / SAVE_SHARE
        newest = [step for step in steps(self.run.checkpoints) if step <= self.step][:KEEP]
        prune(self.run.checkpoints, {*newest, self.best[1]} if self.data.val else newest)

    def train(self, stop: StopFlag, stop_after: int | None = None) -> Iterator[int]:
        """Take the remaining steps, and yield the number of each epoch, from 1, after it."""
        self.last_epoch = min(stop_after or self.last_epoch, self.last_epoch)
        self._report_start()
        self.record = read_record(self.run, self.spec)
        self._settings = compared_settings(self.record)
        self.training.module.train()
        self._started = time.perf_counter()
        try:
            asked, is_new = self.spec.train, not (self.step or self.records)
            if is_new and asked.init_head == "probe" and asked.early_stopping and asked.epochs:
                self._close_epoch({"step": 0, "epoch": 0})  # the probe may stay the best
            for epoch in range(self.step // self.training.steps_per_epoch, self.last_epoch):
                if self._ends_at_best():
                    break
                self._train_epoch(epoch, stop)
                yield epoch + 1
            if self._ends_at_best():
                self._return_to_best()
        finally:
            if self._board:
                self._board.close()

    def _ends_at_best(self) -> bool:
        patience = self.spec.train.early_stopping
        values = [value for _, value in headline_curve(self.records, self.spec, {})]
        if patience is None or self.best[0] not in values:
            return False
        waited = len(values) - 1 - values.index(self.best[0])
        return waited >= patience or self.step == self.training.num_steps

    def _return_to_best(self) -> None:
        """Restore the weights of the best evaluation; keep no later checkpoint and no later record.

        So the files of the run end at one step. TensorBoard keeps the whole curve.
        """
        self.stopped_at, best = self.step, self.best[1]
        checkpoint = load_checkpoint(self.run.checkpoints / str(best))
        self.training.load(best, checkpoint.part, checkpoint.state["scaler"])
        prune(self.run.checkpoints, {best})
        headline = self.row.headline
        _, *values = [value for _, value in headline_curve(self.records, self.spec, {})]
        count = sum(record["step"] <= best for record in self.records)
        self.records, self._records_after_best = self.records[:count], self.records[count:]
        self.run.set_metrics(self.records)
        kept, last = (step // self.training.steps_per_epoch for step in (best, self.stopped_at))
        outcome = f"epoch {kept} is the best of {quantity(1 + len(values), 'evaluation')}"
        outcome += " on the validation split; the run holds its weights"
        if not best:
            scores = f"{headline.text(self.best[0])}, best epoch {headline.text(max(values))}"
            outcome = "tuning did not beat the probe on the validation split"
            outcome += f" ({scores}); the run holds the probe"
        self.on_message(f"stopped after epoch {last}: {outcome}")

    def open_board(self) -> "Board":
        """Return a new event file with the records so far. A failure is reported once."""
        # Imported here because the import takes 0.3 s, which would delay the first step.
        from vitcli.runner.run.tensorboard import Board

        records = self.records + self._records_after_best
        return Board(self.run.path, records, self._note_lost_events, self._settings)

    def _note_lost_events(self, reason: str) -> None:
        if not self.lost_events:
            self.on_message(
                f"warning: {self.run.path}: TensorBoard's event file is incomplete ({reason});"
                " the training continues, and metrics.jsonl has all numbers"
            )
        self.lost_events = reason

    def _report_start(self) -> None:
        started = Started(
            folder=str(self.run.path),
            task=self.spec.task.name,
            headline=self.row.headline.name,
            data=self.spec.data.name,
            device=str(self.device),
            precision=self.built.precision,
            kernels=self.built.kernels,
            parameters=self.built.parameters,
            num_train=len(self.data.train),
            num_test=len(self.data.test) if self.measures_test else 0,
            epochs=self.spec.train.epochs,
            steps_per_epoch=self.training.steps_per_epoch,
            first_step=self.step,
        )
        self.on_event(started)

    def _train_epoch(self, epoch: int, stop: StopFlag) -> None:
        began = reported = time.perf_counter()
        begun_at, last = self.step, (epoch + 1) * self.training.steps_per_epoch
        first = None  # the first step may also compile, capture a graph or ask a teacher
        with arithmetic(self.built.precision):
            for step in self.training.run_epoch(epoch):
                now = time.perf_counter()
                first = first or now
                if (timed := self.step - begun_at - 1) and now - reported > REPORT_SECONDS:
                    reported = now
                    self._report(epoch, step, first, timed)
                number = ranks.agree(stop.number or 0)
                if number and self.step < last:
                    self.step_seconds += time.perf_counter() - began
                    self._interrupt(number)
        self._finish_epoch(epoch, step.lr, began, self.step - begun_at)
        number = ranks.agree(stop.number or 0)
        if number and self.step < self.training.num_steps:
            self._interrupt(number)

    def _report(self, epoch: int, step: Step, began: float, num_steps: int) -> None:
        # Reading a number waits for the device, so the clock must be read afterwards.
        scalars = {name: step.scalars[name].item() for name in self.row.reports}
        seconds_per_step = (time.perf_counter() - began) / num_steps
        is_gpu, per_epoch = self.device.type == "cuda", self.training.steps_per_epoch
        progress = Progress(
            epoch=epoch + 1,
            batch=self.step - epoch * per_epoch,
            step=self.step,
            scalars=scalars,
            lr=step.lr,
            images_per_second=self.spec.train.batch_size / seconds_per_step,
            seconds_left=(self.last_epoch * per_epoch - self.step) * seconds_per_step,
            gpu_bytes=torch.cuda.max_memory_allocated(self.device) if is_gpu else None,
        )
        self._refuse_divergence(scalars["loss"])
        self.on_event(progress)

    def _finish_epoch(self, epoch: int, lr: float, began: float, num_steps: int) -> None:
        ranks.check_weights(self.training.module.state_dict())
        means = self.training.take_means()
        seconds = time.perf_counter() - began
        self.step_seconds += seconds
        self._refuse_divergence(*means.values())
        if problem := self.task.diagnose(means):
            self._warn_once(problem)
        record = {"step": self.step, "epoch": epoch + 1, "lr": lr}
        record |= {f"train_{name}": means[name] for name in self.row.reports}
        record |= {name: means[name] for name in ("grad_norm", SKIPPED) if name in means}
        record["images_per_second"] = num_steps * self.spec.train.batch_size / seconds
        self._close_epoch(record)

    def _close_epoch(self, record: dict[str, Any]) -> None:
        """Evaluate if it is time to, write the record, save a checkpoint if due, and draw if due.

        Epoch 0, before the first step, is that of a probe.
        """
        epoch = record["epoch"]
        last = epoch == self.spec.train.epochs
        if last or epoch % self.spec.train.eval_every == 0:
            record |= self._evaluate_epoch(last)
        self.run.set_metrics([*self.records, record])
        self._board = self._board or self.open_board()
        self.records.append(record)
        self._count_wall_seconds()
        if last or self.best[1] == self.step or time.perf_counter() >= self._next_save:
            self.save()
            self.run.set_status("running", self.step)
        # What only shows the training comes after what it continues from.
        self._board.scalars(record)
        if last or epoch % max(1, self.spec.train.epochs // NUM_ATTENTION_IMAGES) == 0:
            self._draw_pictures(self._board)
        self.on_event(EpochDone(record=record))

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            self.on_message(f"warning: {problem}")

    def _draw_pictures(self, board: "Board") -> None:
        """Draw for TensorBoard; the training does not depend on it."""
        try:
            from vitcli.runner.attn_map.training_pictures import training_pictures

            module = self.training.evaluated_module
            for tag, pixels in training_pictures(self.task, module, self.data):
                board.picture(pixels, self.step, tag)
        except Exception as error:  # of matplotlib, of its settings, or of a user's own part
            reason = own_code.locate_in_own_code(error) or printable(
                f"{type(error).__name__}: {error}"
            )
            self._warn_once(
                f"{self.run.path}: a picture for TensorBoard cannot be drawn ({reason});"
                " the training continues without it"
            )

    def _count_wall_seconds(self) -> None:
        now = time.perf_counter()
        self.wall_seconds += now - self._started
        self._started = now

    def _evaluate_epoch(self, last: bool) -> dict[str, float]:
        """Measure the validation split; measure the test set last, or if there is no split.

        A training without test images measures its validation split only.
        """
        numbers: dict[str, float] = {}
        if self.data.val:
            val = self.task.measure(self.outputs_of(self.data.val))
            numbers |= {f"val_{name}": val[name] for name in self.row.recorded}
            value, (best, step) = val[self.row.headline.name], self.best
            # Of equal values, that of the probe counts (step 0), or else the later one.
            is_as_good = step > 0 and value == best
            if self.best == NO_BEST or is_as_good or self.row.headline.is_better(value, best):
                self.best = (value, self.step)
        if self.measures_test and (last or not self.data.val):
            test = self.task.measure(self.test_outputs())
            numbers |= {f"test_{name}": test[name] for name in self.row.recorded}
        self._refuse_divergence(*numbers.values())
        return numbers

    def test_outputs(self) -> Outputs:
        """Return the task's outputs for the test set; they are computed once per step."""
        if self._outputs is None or self._outputs[0] != self.step:
            self._outputs = (self.step, self.outputs_of(self.data.test))
        return self._outputs[1]

    def outputs_of(self, images: Images) -> Outputs:
        """Return the task's outputs for a split; raise DivergedError if they are not finite."""
        outputs = to_host(self.task.outputs(self.built.evaluated, images))
        self._refuse_divergence(*(tensor.sum().item() for tensor in outputs.values()))
        return outputs

    def _refuse_divergence(self, *numbers: float) -> None:
        if not all(map(math.isfinite, numbers)):
            # It names the epoch, because the step at which divergence is seen depends on time.
            epoch = max(0, self.step - 1) // self.training.steps_per_epoch + 1
            reason = f"loss, gradient or metric is not finite in epoch {epoch}"
            raise DivergedError(self._mark_diverged(reason))

    def _mark_diverged(self, reason: str) -> str:
        """Write status.json; return the message of the error."""
        newest = self.run.last_step()
        self.run.set_status("diverged", newest, reason)
        kept = "there is no checkpoint yet"
        if steps(self.run.checkpoints):
            kept = f"the checkpoint of step {newest} is kept"
        return (
            f"{self.run.path}: diverged: {reason}; {kept}."
            f" Try a lower learning rate: -s optim.lr={self.spec.optim.lr / 3:.1g}"
        )

    def _interrupt(self, number: int) -> None:
        self._count_wall_seconds()
        self._refuse_divergence(*self.training.sums.tolist())
        if self.run.last_step() != self.step:  # saving it again would first unmake it
            self.save()
        self.run.set_status("interrupted", self.step, f"signal {number}")
        raise StoppedError(
            f"stopped at step {self.step} of {self.training.num_steps}; a checkpoint was saved."
            f" Continue: {self.resume_command}",
            number,
        )
