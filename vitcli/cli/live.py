"""What a person sees while a model trains: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from vitcli.cli.console import clean, duration, is_live, percent, say
from vitcli.runner.train.events import EpochDone, Event, Started
from vitcli.runner.train.events import Progress as Steps

LINE_SECONDS = 30.0


def summary(event: Started) -> str:
    """What is trained on what, in two lines."""
    spec = event.spec
    kernels = ", native kernels" if event.kernels == "native" else ""
    line = (
        f"{event.parameters:,} parameters, {event.num_train:,} training and"
        f" {event.num_test:,} test images of {spec.data.name}\n"
        f"{event.device}, {event.precision}{kernels}, {spec.train.epochs} epochs of"
        f" {event.steps_per_epoch} steps, folder {event.run.path}"
    )
    if event.first_step:
        line += f"\ncontinuing at step {event.first_step}"
    return line


def epoch_line(record: dict[str, Any]) -> str:
    """One finished epoch."""
    parts = [f"epoch {record['epoch']:3d}", f"loss {record['train_loss']:.3f}"]
    parts.append(f"train {percent(record['train_accuracy'], 1)}")
    for split in ("val", "test"):
        if f"{split}_accuracy" in record:
            parts.append(f"{split} {percent(record[f'{split}_accuracy'], 1)}")
    parts += [f"lr {record['lr']:.1e}", f"{record['images_per_second']:,.0f} images/s"]
    return "  ".join(parts)


def step_line(event: Steps) -> str:
    """Where the training is."""
    memory = f"  {event.gpu_bytes / 2**30:.1f} GiB" if event.gpu_bytes else ""
    return (
        f"loss {event.loss:.3f}  acc {percent(event.accuracy, 0)}  lr {event.lr:.1e}"
        f"  {event.images_per_second:,.0f} images/s  {duration(event.seconds_left)} left{memory}"
    )


class Lines:
    """For logs: a line an epoch, and one every half minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        say(text)

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.say(summary(event))
        elif isinstance(event, EpochDone):
            self.say(epoch_line(event.record))
        elif time.monotonic() - self._last > LINE_SECONDS:
            self.say(f"epoch {event.epoch:3d}  step {event.step}  {step_line(event)}")
        else:
            return
        self._last = time.monotonic()


class Screen:
    """For a terminal: finished epochs scroll by above a bar for the running one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._steps_per_epoch = 1

    def say(self, text: str) -> None:
        self._progress.console.print(Text(clean(text)))

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.say(summary(event))
            self._steps_per_epoch = event.steps_per_epoch
            self._task = self._progress.add_task("starting", total=event.steps_per_epoch, info="")
        elif isinstance(event, EpochDone):
            self.say(epoch_line(event.record))
        elif self._task is not None:
            self._progress.update(
                self._task,
                description=f"epoch {event.epoch:3d}",
                completed=event.batch,
                info=step_line(event),
            )


@contextmanager
def view() -> Iterator[Lines | Screen]:
    """The display that fits the place where stderr goes."""
    if not is_live():
        yield Lines()
        return
    with bars() as progress:
        yield Screen(progress)


def bars() -> Progress:
    """Bars on stderr, each with a name and an ``info``; they vanish when all is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[info]}"),
    )
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return Progress(*columns, console=console, transient=True)
