"""The display of what is running: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from vitcli.cli.console import is_live, say
from vitcli.core.metric import metric_of
from vitcli.core.spec.task import TASKS, TaskRow
from vitcli.runner.text import duration, printable, quantity, shorten
from vitcli.runner.train import events
from vitcli.runner.train.events import EpochDone, Event, Started

LINE_SECONDS = 30.0
Item = TypeVar("Item")


def epoch_line(record: dict[str, Any], row: TaskRow) -> str:
    """Return the numbers of an epoch as a line: all reports, and the headline of each split."""
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
    others = [name for name in row.reports if name not in ("loss", headline.name)]
    parts += [_report_text(name, record[f"train_{name}"]) for name in others]
    parts += [f"lr {record['lr']:.1e}", f"{record['images_per_second']:,.0f} images/s"]
    return "  ".join(parts)


def _report_text(name: str, value: float) -> str:
    metric = metric_of(name)
    if metric and metric.unit:
        return f"train {metric.short or metric.label} {metric.text(value, metric.short_digits)}"
    return f"{name.replace('_', ' ')} {value:.3f}"


def scalars_text(event: events.Progress, row: TaskRow) -> str:
    """Return the task's scalars of a step, such as ``loss 1.234  acc 56 %``."""
    headline = row.headline
    parts = [f"loss {event.scalars['loss']:.3f}"]
    if (value := event.scalars.get(headline.name)) is not None:
        digits = 0 if headline.unit else None
        parts.append(f"{headline.short or headline.label} {headline.text(value, digits)}")
    return "  ".join(parts)


class Display:
    """Lines for what has ended, and bars for what runs; a log has a line after 30 s of silence."""

    def __init__(self, bars: Progress | None = None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._running: dict[str, str] = {}
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        if self._bars:
            self._bars.console.print(Text(printable(text, keep="\n")))
        else:
            say(text)
        self._last = time.monotonic()

    def move(self, name: str, done: float, total: float | None, info: str) -> None:
        self._running[name] = f"{name} {info}"
        if self._bars is None:
            if time.monotonic() - self._last > LINE_SECONDS:
                self.say("; ".join(self._running.values()))
            return
        if name not in self._tasks:
            label = shorten(printable(name), self._bars.console.width // 3)
            self._tasks[name] = self._bars.add_task(label, info="")
        self._bars.update(self._tasks[name], completed=done, total=total, info=printable(info))

    def end(self, name: str) -> None:
        self._running.pop(name, None)
        if self._bars and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))


class TrainingDisplay(Display):
    has_started = False
    _row: TaskRow | None = None
    _steps = 0

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.has_started = True
            row = TASKS[event.task]
            is_own = event.headline == row.headline.name
            self._row = (
                row if is_own else replace(row, headline=metric_of(event.headline) or row.headline)
            )
            self._steps = event.epochs * event.steps_per_epoch
            kernels = ", native kernels" if event.kernels == "native" else ""
            self.say(
                f"{event.parameters:,} parameters, {event.num_train:,} training and"
                f" {event.num_test:,} test images of {event.data}\n"
                f"{event.device}, {event.precision}{kernels}, {quantity(event.epochs, 'epoch')} of"
                f" {quantity(event.steps_per_epoch, 'step')}, folder {event.folder}"
            )
            if event.first_step:
                self.say(f"continuing at step {event.first_step}")
            self.move("training", event.first_step, self._steps, "starting ...")
        elif self._row and isinstance(event, EpochDone):
            self.say(epoch_line(event.record, self._row))
        elif self._row and isinstance(event, events.Progress):
            memory = f"  {event.gpu_bytes / 2**30:.1f} GiB" if event.gpu_bytes else ""
            info = (
                f"epoch {event.epoch}  {scalars_text(event, self._row)}  lr {event.lr:.1e}"
                f"  {event.images_per_second:,.0f} images/s  {duration(event.seconds_left)} left"
                f"{memory}"
            )
            self.move("training", event.step, self._steps, info)


def counted(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield items; a bar, or a line every 30 s in a log, shows how many of them are done."""
    with bars(total > 1) as progress:
        display = Display(progress)
        for done, item in enumerate(items, start=1):
            display.move(what, done, total, f"{done:,} of {total:,}")
            yield item


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a listener that gets the name of a stage and its parts done and all."""
    with bars() as progress:
        display = Display(progress)
        seen: list[str] = []

        def move(name: str, done: int, total: int) -> None:
            if name not in seen:
                for ended in seen:
                    display.end(ended)
                seen.append(name)
                if not progress:
                    display.say(f"{name} ...")
            if progress:
                info = f"{done:,} of {total:,}" if total > 1 else ""
                display.move(name, done, total, info)

        yield move


@contextmanager
def bars(is_wanted: bool = True) -> Iterator[Progress | None]:
    """Yield bars on stderr, each with a name and an ``info``; None if stderr is no terminal."""
    if not (is_wanted and is_live()):
        yield None
        return
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24 if console.width >= 100 else 10),
        TextColumn("{task.fields[info]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress
