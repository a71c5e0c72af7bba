"""Hooks: objects that are told what a training does. The loop knows none of them by name.

To do something at each epoch, write a class such as this one, and give it to ``train``:

    from vitcli.runner.experiment.config import load_experiment
    from vitcli.runner.train.prepare import Request
    from vitcli.runner.train.train import train
    from vitcli.runner.train.trainer import Hook

    class Print(Hook):
        def on_epoch(self, trainer, record):
            print(record["epoch"], record["train_loss"])

    train(load_experiment("quickstart", {"train.epochs": 2}), Request(), hooks=(Print(),))
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vitcli.core import ranks
from vitcli.core.data.batches import Batch, num_limited
from vitcli.core.train.training import Step
from vitcli.plugin import load_target, rows_of
from vitcli.runner.experiment import own_code
from vitcli.runner.run.checkpoint import load_checkpoint, prune
from vitcli.runner.run.compare import compared_settings
from vitcli.runner.run.record import headline_curve
from vitcli.runner.text import printable, quantity
from vitcli.runner.train.events import EpochDone, Progress, Started
from vitcli.runner.train.prepare import Plan
from vitcli.runner.train.signals import StopFlag
from vitcli.runner.train.trainer import Hook, Trainer

if TYPE_CHECKING:
    from vitcli.runner.run.tensorboard import Board

REPORT_SECONDS = 0.5
NUM_PICTURES = 10
"""Approximate number of times per run that the attention and the task's pictures are drawn."""
NUM_IMAGES = 8


def hooks_of(plan: Plan, others: Sequence[Hook] = ()) -> tuple[Hook, ...]:
    """Return the hooks that an experiment and a request ask for, in the order of their calls.

    ``others`` are called on rank 0.
    """
    request, train = plan.request, plan.spec.train
    hooks: list[Hook] = []
    if ranks.own_rank() == 0:
        hooks += [TensorBoard(), Display()]
        hooks += [load_target(rows_of("tracker")[name])() for name in request.track]
        hooks += others
    if train.early_stopping is not None:
        hooks.append(EarlyStopping(train.early_stopping))
    return (*hooks, Signals())


class Display(Hook):
    """Sends events to ``request.on_event``, about twice a second, and sees a divergence early."""

    def on_start(self, trainer: Trainer) -> None:
        training, spec = trainer.training, trainer.spec
        self._seen = 0
        started = Started(
            folder=str(trainer.run.path),
            task=spec.task.name,
            headline=trainer.row.headline.name,
            data=spec.data.name,
            device=str(training.device),
            precision=training.precision,
            kernels=training.kernels,
            parameters=training.parameters,
            num_train=len(trainer.data.train),
            num_test=num_limited(len(trainer.data.test), spec) if trainer.plan.measures_test else 0,
            epochs=spec.train.epochs,
            steps_per_epoch=training.steps_per_epoch,
            first_step=trainer.step,
        )
        trainer.request.on_event(started)

    def on_step(self, trainer: Trainer, step: Step) -> None:
        now = time.perf_counter()
        if self._seen == 0:  # it may also compile, capture a graph or ask a teacher
            self._first = self._reported = now
        elif now - self._reported > REPORT_SECONDS:
            self._reported = now
            self._report(trainer, step)
        self._seen += 1

    def _report(self, trainer: Trainer, step: Step) -> None:
        # Reading a number waits for the device, so the clock must be read afterwards.
        scalars = {name: step.scalars[name].item() for name in trainer.row.reports}
        seconds_per_step = (time.perf_counter() - self._first) / self._seen
        trainer.refuse_divergence(scalars["loss"])
        device, per_epoch = trainer.training.device, trainer.training.steps_per_epoch
        is_gpu = device.type == "cuda"
        progress = Progress(
            epoch=trainer.epoch + 1,
            batch=trainer.step - trainer.epoch * per_epoch,
            step=trainer.step,
            scalars=scalars,
            lr=step.lr,
            images_per_second=trainer.spec.train.batch_size / seconds_per_step,
            seconds_left=(trainer.last_epoch * per_epoch - trainer.step) * seconds_per_step,
            gpu_bytes=torch.cuda.max_memory_allocated(device) if is_gpu else None,
        )
        trainer.request.on_event(progress)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._seen = 0
        trainer.request.on_event(EpochDone(record=record))


class TensorBoard(Hook):
    """Writes the event file. The training does not depend on it."""

    _board: "Board | None" = None

    def on_start(self, trainer: Trainer) -> None:
        self._settings = compared_settings(trainer.run, trainer.spec, trainer.meta)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        if self._board is None:
            self._board = self._open(trainer, trainer.records[:-1])
        self._board.scalars(record)
        epochs = trainer.spec.train.epochs
        if record["epoch"] == epochs or record["epoch"] % max(1, epochs // NUM_PICTURES) == 0:
            self._draw(trainer, self._board)

    def on_end(self, trainer: Trainer) -> None:
        self._board = self._board or self._open(trainer, trainer.records)

    def on_result(self, trainer: Trainer, measured: dict[str, float], batch: Batch) -> None:
        if self._board:
            shown = {f"test_{name}": measured[name] for name in trainer.row.recorded if measured}
            self._board.result(shown)
            images = batch["images"][:NUM_IMAGES].flatten(0, -4)
            self._board.images("images/augmented", images, 0)

    def on_stop(self, trainer: Trainer) -> None:
        if self._board:
            self._board.close()

    def _open(self, trainer: Trainer, records: list[dict[str, Any]]) -> "Board":
        # Imported here because the import takes 0.3 s, which would delay the first step.
        from vitcli.runner.run.tensorboard import Board

        def warn(reason: str) -> None:
            trainer.warn(
                f"{trainer.run.path}: TensorBoard's event file is incomplete ({reason});"
                " the training continues, and metrics.jsonl has all numbers"
            )

        return Board(trainer.run.path, records, warn, self._settings)

    def _draw(self, trainer: Trainer, board: "Board") -> None:
        try:
            from vitcli.runner.attn_map.training_pictures import training_pictures

            module = trainer.training.evaluated_module
            for tag, pixels in training_pictures(trainer.task, module, trainer.data):
                board.picture(pixels, trainer.step, tag)
        except Exception as error:  # of matplotlib, of its settings, or of a user's own part
            reason = own_code.locate_in_own_code(error) or printable(
                f"{type(error).__name__}: {error}"
            )
            trainer.warn(
                f"{trainer.run.path}: a picture for TensorBoard cannot be drawn ({reason});"
                " the training continues without it"
            )


class EarlyStopping(Hook):
    """Ends after ``patience`` evaluations without a better one, and returns to the best weights."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_start(self, trainer: Trainer) -> None:
        train, is_new = trainer.spec.train, not (trainer.step or trainer.records)
        if is_new and train.init_head == "probe" and train.epochs:
            trainer.close_epoch({"step": 0, "epoch": 0})  # the probe may stay the best
        if self._has_waited(trainer):
            trainer.last_epoch = trainer.epoch

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        if record["epoch"] and self._has_waited(trainer):
            trainer.last_epoch = trainer.epoch

    def _has_waited(self, trainer: Trainer) -> bool:
        values = self._values(trainer)
        best = trainer.best[0]
        return best in values and len(values) - 1 - values.index(best) >= self.patience

    def _values(self, trainer: Trainer) -> list[float]:
        return [value for _, value in headline_curve(trainer.records, trainer.spec, {})]

    def on_end(self, trainer: Trainer) -> None:
        """Restore the weights of the best evaluation; keep no later checkpoint and record.

        So the files of the run end at one step. TensorBoard keeps the whole curve.
        """
        values = self._values(trainer)
        is_over = self._has_waited(trainer) or trainer.step == trainer.training.num_steps
        if trainer.best[0] not in values or not is_over:  # --stop-after came first
            return
        run, training, headline = trainer.run, trainer.training, trainer.row.headline
        best = trainer.best[1]
        trainer.stopped_at = trainer.step
        checkpoint = load_checkpoint(run.checkpoints / str(best))
        training.load(best, checkpoint.part, checkpoint.state["scaler"])
        prune(run.checkpoints, {best})
        trainer.records = [record for record in trainer.records if record["step"] <= best]
        run.set_metrics(trainer.records)
        kept, last = (step // training.steps_per_epoch for step in (best, trainer.stopped_at))
        outcome = f"epoch {kept} is the best of {quantity(len(values), 'evaluation')}"
        outcome += " on the validation split; the run holds its weights"
        if not best:
            scores = f"{headline.text(values[0])}, best epoch {headline.text(max(values[1:]))}"
            outcome = "tuning did not beat the probe on the validation split"
            outcome += f" ({scores}); the run holds the probe"
        trainer.request.on_message(f"stopped after epoch {last}: {outcome}")


class Signals(Hook):
    """Stops between two steps after SIGINT, SIGTERM or SIGHUP, on all ranks after the same step.

    After the last step a signal no longer stops the result.
    """

    def __init__(self) -> None:
        self._flag = StopFlag(again=ranks.size() == 1)

    def on_start(self, trainer: Trainer) -> None:
        self._flag.__enter__()

    def on_step(self, trainer: Trainer, step: Step) -> None:
        self._stop_before(trainer, (trainer.epoch + 1) * trainer.training.steps_per_epoch)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._stop_before(trainer, trainer.training.num_steps)

    def _stop_before(self, trainer: Trainer, last_step: int) -> None:
        number = ranks.agree(self._flag.number or 0)
        if number and trainer.step < last_step:
            trainer.interrupt(number)

    def on_stop(self, trainer: Trainer) -> None:
        self._flag.__exit__()
