"""One training in progress: the objects that a checkpoint restores, and the loop over epochs."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.data.batches import num_batches, train_batches
from vitcli.core.data.source import DataSet, Images
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.classify import Classify
from vitcli.core.train.ema import Ema
from vitcli.core.train.evaluate import score
from vitcli.core.train.fit import Batch, Step, fit
from vitcli.core.train.optim import build_optimizers, load_state_tensors, state_tensors
from vitcli.core.train.schedule import lr_factor
from vitcli.runner.errors import ConfigError, DivergedError, InputError, StoppedError
from vitcli.runner.evaluate.logits import logits_and_labels
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.experiment.diff import Change
from vitcli.runner.machine.allocator import keep_freed_memory
from vitcli.runner.machine.device import compile_model, pick_precision, precision_name
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.run.checkpoint import Checkpoint, prune, save_checkpoint
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.tensorboard import Board
from vitcli.runner.train.events import EpochDone, Event, Progress, Started
from vitcli.runner.train.exactness import changes, numerical_environment
from vitcli.runner.train.signals import StopFlag

KEEP = 2
SAVE_SHARE = 0.03
"""Of the training's time, about the most that checkpoints after epochs may take."""
REPORT_SECONDS = 0.5
PICTURES = 10
"""About so many times in a run the attention on a few test images is drawn."""
SUMS = ("loss", "accuracy", "grad_norm")


class Trainer:
    """Model, optimisers, averages and counters of one run."""

    def __init__(
        self,
        spec: ExperimentSpec,
        model: ImageModel,
        data: DataSet,
        run: RunDir,
        device: torch.device,
        on_event: Callable[[Event], None],
        on_message: Callable[[str], None],
        kernels: str | None = None,
    ) -> None:
        self.spec, self.data, self.run, self.device = spec, data, run, device
        self.on_event, self.on_message = on_event, on_message
        if device.type == "cpu":
            keep_freed_memory()
        self.model = model.to(device)
        self.model.grad_checkpointing = spec.train.grad_checkpointing
        self.autocast = pick_precision(spec.train.precision, device)
        self.kernels = choose_kernels(
            self.model, device, self.autocast, kernels or spec.train.wanted_kernels, on_message
        )
        self.optimizers = build_optimizers(self.model, spec.optim)
        fp16 = self.autocast is torch.float16
        self.scaler = torch.amp.GradScaler(device.type) if fp16 else None
        decay = spec.train.ema_decay
        self.ema = Ema(self.model, decay) if decay is not None else None
        self.steps_per_epoch = self._count_batches()
        self.step = 0
        self.step_seconds = 0.0
        self.wall_seconds = 0.0
        self.sums = self._zeros()
        self.records: list[dict[str, Any]] = []
        self.best: tuple[float, int] = (-1.0, 0)
        self._next_save = 0.0
        self._predicted: tuple[int, Tensor, Tensor] | None = None

    def _count_batches(self) -> int:
        try:
            count = num_batches(len(self.data.train), self.spec.train.batch_size)
        except ValueError as error:
            fewer = max(1, len(self.data.train) // 4)
            raise ConfigError(
                f"train.batch_size: {error}; try -s train.batch_size={fewer}"
            ) from error
        return min(count, self.spec.train.limit_batches or count)

    def _zeros(self) -> Tensor:
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.zeros(len(SUMS), dtype=wide, device=self.device)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.spec.train.epochs

    @property
    def evaluated(self) -> nn.Module:
        """The weights that count: the average where there is one."""
        return self.ema.model if self.ema else self.model

    def checkpoint(self) -> Checkpoint:
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors["progress.sums"] = self.sums
        if self.ema:
            tensors |= {f"ema.{k}": v for k, v in self.ema.model.state_dict().items()}
        tensors |= {f"optim.{k}": v for k, v in state_tensors(self.optimizers).items()}
        state = {
            "step_seconds": self.step_seconds,
            "wall_seconds": self.wall_seconds,
            "best": list(self.best),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "precision": precision_name(self.autocast),
            "kernels": self.kernels,
            "weights": "ema" if self.ema else "model",
            "circumstances": numerical_environment(self.device),
            "model": model_hash(self.spec.model),
        }
        return Checkpoint(self.step, tensors, state)

    def changes_since(self, checkpoint: Checkpoint) -> dict[str, Change]:
        """What the bits rest on and is no longer what it was: name -> (then, now).

        Raises:
            ConfigError: Here the run would go on in another precision, or has no step left.
            InputError: The checkpoint is that of another model.
        """
        if checkpoint.step > self.num_steps:
            done = checkpoint.step // self.steps_per_epoch
            raise ConfigError(f"train.epochs: {done} are behind this run already")
        here = precision_name(self.autocast), model_hash(self.spec.model)
        return changes(checkpoint.state, self.run.read("meta.json"), self.device, *here)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take everything from a checkpoint, and the records up to it; writes nothing.

        Raises:
            InputError: The checkpoint does not fit the configuration.
        """
        try:
            self._restore(checkpoint)
        except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
            where = self.run.checkpoints / str(checkpoint.step)
            raise InputError(f"{where} does not fit config.yaml: {error}") from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.part("model"))
        if self.ema:
            self.ema.model.load_state_dict(checkpoint.part("ema"))
        load_state_tensors(self.optimizers, checkpoint.part("optim"))
        if self.scaler:
            self.scaler.load_state_dict(checkpoint.state["scaler"])
        self.step = checkpoint.step
        self.sums = checkpoint.part("progress")["sums"].to(self.sums)
        self.step_seconds = checkpoint.state["step_seconds"]
        self.wall_seconds = checkpoint.state["wall_seconds"]
        self.best = (checkpoint.state["best"][0], checkpoint.state["best"][1])
        self.records = [r for r in self.run.metrics() if r["step"] <= self.step]

    def save(self) -> None:
        """Write a checkpoint, then remove those that are not kept."""
        began = time.perf_counter()
        save_checkpoint(self.run.checkpoints, self.checkpoint())
        now = time.perf_counter()
        self._next_save = now + (now - began) / SAVE_SHARE
        newest = [step for step in steps(self.run.checkpoints) if step <= self.step][:KEEP]
        prune(self.run.checkpoints, {*newest, self.best[1]} if self.data.val else newest)

    def train(self, stop: StopFlag) -> None:
        """Run every remaining step; a signal ends it after a checkpoint."""
        self.board = Board(self.run.path, self.records)
        self._announce()
        network = self._network()
        self.model.train()
        self._started = time.perf_counter()
        try:
            for epoch in range(self.step // self.steps_per_epoch, self.spec.train.epochs):
                self._train_epoch(epoch, network, stop)
        finally:
            self.board.close()

    def _announce(self) -> None:
        started = Started(
            run=self.run,
            spec=self.spec,
            device=self.device,
            precision=precision_name(self.autocast),
            kernels=self.kernels,
            parameters=count_parameters(self.model),
            num_train=len(self.data.train),
            num_test=len(self.data.test),
            steps_per_epoch=self.steps_per_epoch,
            first_step=self.step,
        )
        self.on_event(started)

    def _network(self) -> nn.Module:
        if not self.spec.train.compiles_on(self.device.type):
            return self.model
        part = self.spec.train.batch_size // self.spec.train.accumulate
        images = next(self.batches(0))["images"][:part]
        self.on_message("compiling the model ...")
        return compile_model(self.model, images, self.autocast, self.on_message)

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The training batches of an epoch, from one on."""
        data = self.spec.data
        assert data.mean is not None
        assert data.std is not None
        batches = train_batches(
            self.data.train,
            data.augment,
            mean=data.mean,
            std=data.std,
            num_classes=self.data.num_classes,
            batch_size=self.spec.train.batch_size,
            seed=self.spec.seed,
            epoch=epoch,
            first_batch=first_batch,
        )
        for _, batch in zip(range(first_batch, self.steps_per_epoch), batches, strict=False):
            yield batch

    def _train_epoch(self, epoch: int, network: nn.Module, stop: StopFlag) -> None:
        first = self.step - epoch * self.steps_per_epoch
        task = Classify(network, self.spec.train.label_smoothing, self.spec.seed)
        began = reported = time.perf_counter()
        begun_at = self.step
        for step in self._fit(task, self.batches(epoch, first)):
            self.step = step.step
            if self.ema:
                self.ema.update(self.step)
            self._add(step)
            now = time.perf_counter()
            if now - reported > REPORT_SECONDS:
                reported = now
                self._report(epoch, step, began, self.step - begun_at)
            if stop.number is not None and self.step < (epoch + 1) * self.steps_per_epoch:
                self.step_seconds += time.perf_counter() - began
                self._interrupt(stop.number)
        self._finish_epoch(epoch, step.lr, began, self.step - begun_at)
        if stop.number is not None and self.step < self.num_steps:
            self._interrupt(stop.number)

    def _add(self, step: Step) -> None:
        values = torch.stack([step.scalars[name].to(self.sums) for name in SUMS])
        if self.scaler and not values[2].isfinite():  # fp16 skipped this step
            values[2] = 0
        self.sums += values

    def _fit(self, task: Classify, batches: Iterator[Batch]) -> Iterator[Step]:
        optim, warmup = self.spec.optim, self.spec.optim.warmup_epochs * self.steps_per_epoch
        factor = partial(
            lr_factor,
            schedule=optim.schedule,
            warmup_steps=round(warmup),
            num_steps=self.num_steps,
            min_ratio=optim.min_lr_ratio,
        )
        return fit(
            task,
            batches,
            self.optimizers,
            factor,
            seed=self.spec.seed,
            first_step=self.step,
            max_grad_norm=optim.max_grad_norm,
            accumulate=self.spec.train.accumulate,
            autocast=self.autocast,
            scaler=self.scaler,
        )

    def _report(self, epoch: int, step: Step, began: float, num_steps: int) -> None:
        loss = step.scalars["loss"].item()  # waits for the device, so the clock is read after it
        seconds_per_step = (time.perf_counter() - began) / num_steps
        is_gpu = self.device.type == "cuda"
        gpu = torch.cuda.max_memory_allocated(self.device) if is_gpu else None
        progress = Progress(
            epoch=epoch + 1,
            batch=self.step - epoch * self.steps_per_epoch,
            step=self.step,
            loss=loss,
            accuracy=step.scalars["accuracy"].item(),
            lr=step.lr,
            images_per_second=self.spec.train.batch_size / seconds_per_step,
            seconds_left=(self.num_steps - self.step) * seconds_per_step,
            gpu_bytes=gpu,
        )
        self._refuse_divergence(progress.loss)
        self.on_event(progress)

    def _finish_epoch(self, epoch: int, lr: float, began: float, num_steps: int) -> None:
        means = [total / self.steps_per_epoch for total in self.sums.tolist()]
        seconds = time.perf_counter() - began
        self.step_seconds += seconds
        self._refuse_divergence(*means)
        self.sums = self._zeros()
        record = {
            "step": self.step,
            "epoch": epoch + 1,
            "lr": lr,
            "train_loss": means[0],
            "train_accuracy": means[1],
            "grad_norm": means[2],
            "images_per_second": num_steps * self.spec.train.batch_size / seconds,
        }
        last = epoch + 1 == self.spec.train.epochs
        if last or (epoch + 1) % self.spec.train.eval_every == 0:
            record |= self._evaluate_epoch(last)
        self.records.append(record)
        self.run.set_metrics(self.records)
        self.board.scalars(record)
        if last or (epoch + 1) % max(1, self.spec.train.epochs // PICTURES) == 0:
            self._picture()
        self._tick()
        if last or self.best[1] == self.step or time.perf_counter() >= self._next_save:
            self.save()
            self.run.set_status("running", self.step)
        self.on_event(EpochDone(record=record))

    def _picture(self) -> None:
        """Where the model looks now, for TensorBoard; nothing of the training depends on it.

        A model whose attention takes up too much memory for that gets no picture.
        """
        from vitcli.runner.attn_map.strip import MAX_BYTES, attention_strip, fixed_images

        model = self.evaluated
        if not isinstance(model, VisionTransformer) or not model.has_attention_weights:
            return
        tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
        if 4 * model.spec.num_heads * tokens**2 <= MAX_BYTES:
            images = fixed_images(self.data.val or self.data.test)
            self.board.picture(attention_strip(model, images, self.spec.data), self.step)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.wall_seconds += now - self._started
        self._started = now

    def _evaluate_epoch(self, last: bool) -> dict[str, float]:
        """With a validation split the test set is left alone until the end."""
        found: dict[str, float] = {}
        if self.data.val:
            val = score(*self._measure(self.data.val))
            found |= {"val_loss": val.loss, "val_accuracy": val.accuracy}
            self.best = max(self.best, (val.accuracy, self.step))
        if last or not self.data.val:
            test = score(*self.test_predictions())
            found |= {"test_loss": test.loss, "test_accuracy": test.accuracy}
        return found

    def test_predictions(self) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and labels (N,) of the test set, measured once a step."""
        if self._predicted is None or self._predicted[0] != self.step:
            self._predicted = (self.step, *self._measure(self.data.test))
        return self._predicted[1:]

    def _measure(self, images: Images) -> tuple[Tensor, Tensor]:
        """By the weights that count; logits that are not finite are a divergence."""
        logits, labels = logits_and_labels(self.evaluated, images, self.spec)
        self._refuse_divergence(logits.sum().item())
        return logits, labels

    def _refuse_divergence(self, *numbers: float) -> None:
        if all(math.isfinite(number) for number in numbers):
            return
        # The epoch, not the step: when it is noticed depends on the clock.
        epoch = max(0, self.step - 1) // self.steps_per_epoch + 1
        reason = f"loss or gradient is not finite in epoch {epoch}"
        newest = self.run.last_step()
        self.run.set_status("diverged", newest, reason)
        kept = (
            f"the checkpoint of step {newest} is kept" if newest else "there is no checkpoint yet"
        )
        raise DivergedError(
            f"{self.run.path}: diverged: {reason}; {kept}."
            f" Try a lower rate: -s optim.lr={self.spec.optim.lr / 3:.1g}"
        )

    def _interrupt(self, number: int) -> None:
        self._tick()
        self._refuse_divergence(*self.sums.tolist())
        self.save()
        self.run.set_status("interrupted", self.step, f"signal {number}")
        raise StoppedError(
            f"stopped at step {self.step} of {self.num_steps}; a checkpoint was saved."
            f" Continue: vitcli train --resume {self.run.name}",
            number,
        )
