"""The display of a running training: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from vitcli.cli.console import is_live, say
from vitcli.core.spec.metrics import METRICS
from vitcli.core.spec.task import TASKS, TaskRow
from vitcli.runner.text import duration, printable, quantity
from vitcli.runner.train import events
from vitcli.runner.train.events import EpochDone, Event, Started

LINE_SECONDS = 30.0
Item = TypeVar("Item")


def start_text(event: Started) -> str:
    """Return the model, the data and the folder of a training, in two lines."""
    kernels = ", native kernels" if event.kernels == "native" else ""
    line = (
        f"{event.parameters:,} parameters, {event.num_train:,} training and"
        f" {event.num_test:,} test images of {event.data}\n"
        f"{event.device}, {event.precision}{kernels}, {quantity(event.epochs, 'epoch')} of"
        f" {quantity(event.steps_per_epoch, 'step')}, folder {event.folder}"
    )
    if event.first_step:
        line += f"\ncontinuing at step {event.first_step}"
    return line


def epoch_line(record: dict[str, Any], row: TaskRow) -> str:
    """Return the numbers of an epoch as a line: all reports, and the headline of each split.

    The accuracy of a classification needs no name. Epoch 0, before the first step, has no losses.
    """
    headline = row.headline
    is_plain = row.classifies and headline.name == "accuracy"
    name = "" if is_plain else f"{headline.short or headline.label} "
    is_probe = record["epoch"] == 0
    parts = [f"epoch {record['epoch']:3d}"]
    parts += ["probe"] if is_probe else [f"loss {record['train_loss']:.3f}"]
    for split in ("train", "val", "test"):
        value = record.get(f"{split}_{headline.name}")
        if value is not None:
            parts.append(f"{split} {name}{headline.text(value, headline.short_digits)}")
    if is_probe:
        return "  ".join(parts)
    others = [each for each in row.reports if each not in ("loss", headline.name)]
    parts += [f"{each.replace('_', ' ')} {record[f'train_{each}']:.3f}" for each in others]
    parts += [f"lr {record['lr']:.1e}", f"{record['images_per_second']:,.0f} images/s"]
    return "  ".join(parts)


def scalars_text(event: events.Progress, row: TaskRow) -> str:
    """Return the task's scalars of a step, such as ``loss 1.234  acc 56 %``."""
    headline = row.headline
    parts = [f"loss {event.scalars['loss']:.3f}"]
    if (value := event.scalars.get(headline.name)) is not None:
        digits = 0 if headline.unit else None
        parts.append(f"{headline.short or headline.label} {headline.text(value, digits)}")
    return "  ".join(parts)


def step_line(event: events.Progress, row: TaskRow) -> str:
    """Return the progress of a training as a line."""
    memory = f"  {event.gpu_bytes / 2**30:.1f} GiB" if event.gpu_bytes else ""
    return (
        f"{scalars_text(event, row)}  lr {event.lr:.1e}  {event.images_per_second:,.0f} images/s"
        f"  {duration(event.seconds_left)} left{memory}"
    )


class Lines:
    """The display in logs: a line per epoch, and one every half minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._row: TaskRow | None = None

    def say(self, text: str) -> None:
        say(text)

    def show(self, event: Event) -> None:
        """Print an event, if it is time to."""
        if isinstance(event, Started):
            row = TASKS[event.task]
            is_own = event.headline == row.headline.name
            self._row = row if is_own else replace(row, headline=METRICS[event.headline])
            self.say(start_text(event))
        elif self._row and isinstance(event, EpochDone):
            self.say(epoch_line(event.record, self._row))
        elif self._row and isinstance(event, events.Progress):
            if time.monotonic() - self._last <= LINE_SECONDS:
                return
            self.say(f"epoch {event.epoch:3d}  step {event.step}  {step_line(event, self._row)}")
        self._last = time.monotonic()


class Screen(Lines):
    """The display on a terminal: lines of finished epochs above a bar for the running epoch."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        self._progress.console.print(Text(printable(text, keep="\n")))

    def show(self, event: Event) -> None:
        """Print an event, or move the bar."""
        if not isinstance(event, events.Progress):
            super().show(event)
        if isinstance(event, Started):
            self._task = self._progress.add_task("starting", total=event.steps_per_epoch, info="")
        elif isinstance(event, events.Progress) and self._task is not None and self._row:
            self._progress.update(
                self._task,
                description=f"epoch {event.epoch:3d}",
                completed=event.batch,
                info=step_line(event, self._row),
            )


@contextmanager
def view() -> Iterator[Lines]:
    """Yield the display for stderr: bars on a terminal, lines elsewhere."""
    if not is_live():
        yield Lines()
        return
    with bars() as progress:
        yield Screen(progress)


def counted(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield items; on a terminal, a bar shows how many of them are done."""
    if not is_live() or total < 2:
        yield from items
        return
    with bars() as progress:
        task = progress.add_task(what, total=total, info="")
        for done, item in enumerate(items, start=1):
            progress.update(task, completed=done, info=f"{done:,} of {total:,}")
            yield item


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a listener to the progress of stages, which gets a name, and the parts done and all.

    A terminal has a bar for the running stage, and a log has a line for each stage.
    """
    seen: set[str] = set()
    if not is_live():

        def write(name: str, _: int, __: int) -> None:
            if name not in seen:
                seen.add(name)
                say(f"{name} ...")

        yield write
        return
    with bars() as progress:
        task = progress.add_task("", total=None, info="")

        def move(name: str, done: int, total: int) -> None:
            info = f"{done:,} of {total:,}" if total > 1 else ""
            progress.update(task, description=name, completed=done, total=total, info=info)

        yield move


def bars() -> Progress:
    """Return bars on stderr, each with a name and an ``info``; they disappear at the end."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24 if console.width >= 100 else 10),
        TextColumn("{task.fields[info]}"),
    )
    return Progress(*columns, console=console, transient=True)
