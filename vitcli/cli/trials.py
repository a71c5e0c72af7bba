"""The display of a running study: a bar per trial on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, TaskID
from rich.text import Text

from vitcli.cli.console import is_live, say
from vitcli.cli.live import bars, scalars_text
from vitcli.core.spec.task import TaskRow
from vitcli.runner.study.plan import Options, StudyPlan, worker_count
from vitcli.runner.text import duration, printable, quantity, shorten
from vitcli.runner.train import events
from vitcli.runner.train.events import Ended, Message, Started, Stopping, TrialEvent

LINE_SECONDS = 30.0


class StudyProgress:
    """Number of finished and running trials, and the time left."""

    def __init__(self, total: int, count: int) -> None:
        self.total, self.count = total, max(1, min(count, total))
        self.done = 0
        self.left: dict[str, float] = {}
        self._started_at: dict[str, float] = {}
        self._durations: list[float] = []

    def add_event(self, trial_event: TrialEvent) -> None:
        """Update the progress with an event."""
        folder, event = trial_event.folder, trial_event.event
        if isinstance(event, Started):
            self._started_at[folder] = time.monotonic()
        elif isinstance(event, events.Progress):
            self.left[folder] = event.seconds_left
        elif isinstance(event, Ended):
            self.done += 1
            self.left.pop(folder, None)
            if folder in self._started_at:
                self._durations.append(time.monotonic() - self._started_at.pop(folder))

    def seconds_left(self) -> float | None:
        """Return the remaining work in seconds, divided by the number of workers.

        None means that no trial has reported progress or ended yet.
        """
        running = list(self.left.values())
        elapsed = [time.monotonic() - begun for begun in self._started_at.values()]
        known = self._durations or [a + b for a, b in zip(elapsed, running, strict=False)]
        if not known:
            return None
        waiting = max(0, self.total - self.done - len(self._started_at))
        return (sum(running) + waiting * sum(known) / len(known)) / self.count

    def line(self) -> str:
        left = self.seconds_left() if self.done < self.total else None
        time_left = f", about {duration(left)} left" if left is not None else ""
        return f"{self.done} of {quantity(self.total, 'trial')}{time_left}"


def end_line(
    folder: str, event: Ended, seconds: float | None, row: TaskRow, split: str = "test"
) -> str:
    """Return a line about an ended trial: its result or state, and its duration."""
    what = event.state if event.score is None else f"{split} {row.headline.text(event.score)}"
    took = f"  {duration(seconds)}" if seconds is not None else ""
    return f"{folder:<32}  {what}{took}"


class Lines:
    """The display in logs: a line for each trial that ended, and progress lines.

    A progress line is due after 30 s without output.
    """

    def __init__(self, total: int, count: int, row: TaskRow, split: str = "test") -> None:
        self._progress = StudyProgress(total, count)
        self._row, self._split = row, split
        self._began: dict[str, float] = {}
        self._running: dict[str, str] = {}
        self._printed: set[str] = set()
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        say(text)
        self._last = time.monotonic()

    def show(self, trial_event: TrialEvent) -> None:
        """Update the progress with an event, and print a line if one is due."""
        self._progress.add_event(trial_event)
        folder, event = trial_event.folder, trial_event.event
        if isinstance(event, Started):
            self._began[folder] = time.monotonic()
        elif isinstance(event, Ended):
            self._running.pop(folder, None)
            begun = self._began.pop(folder, None)
            seconds = begun and time.monotonic() - begun
            self.say(end_line(folder, event, seconds, self._row, self._split))
            if event.reason and event.state == "failed":
                self._message(folder, event.reason)
        elif isinstance(event, Message):
            self._message(folder, event.text)
        elif isinstance(event, Stopping):
            self.say("stopping: every running trial saves a checkpoint")
        elif isinstance(event, events.Progress):
            loss = event.scalars["loss"]
            self._running[folder] = f"{folder} epoch {event.epoch} loss {loss:.3f}"
            if time.monotonic() - self._last > LINE_SECONDS:
                self.say(f"{self._progress.line()}; {'; '.join(self._running.values())}")

    def _message(self, folder: str, text: str) -> None:
        """Print each message only once, because all trials report the same about the data."""
        if text not in self._printed:
            self._printed.add(text)
            self.say(f"{folder}: {text}" if folder else text)


class Screen(Lines):
    """The display on a terminal: lines of finished trials above a bar for each running trial."""

    def __init__(
        self, progress: Progress, total: int, count: int, row: TaskRow, split: str = "test"
    ) -> None:
        super().__init__(total, count, row, split)
        self._bars = progress
        self._tasks: dict[str, TaskID] = {}
        self._all = progress.add_task("all", total=total, info="starting ...")

    def say(self, text: str) -> None:
        self._bars.console.print(Text(printable(text, keep="\n")))
        self._last = time.monotonic()

    def show(self, trial_event: TrialEvent) -> None:
        """Print a line if one is due, and update the bars."""
        super().show(trial_event)
        folder, event = trial_event.folder, trial_event.event
        if isinstance(event, Started):
            steps = event.epochs * event.steps_per_epoch
            name = shorten(folder, self._bars.console.width // 3)
            self._tasks[folder] = self._bars.add_task(
                name, total=steps, completed=event.first_step, info=""
            )
        elif isinstance(event, events.Progress) and folder in self._tasks:
            info = f"epoch {event.epoch}  {scalars_text(event, self._row)}"
            self._bars.update(self._tasks[folder], completed=event.step, info=info)
        elif isinstance(event, Ended) and folder in self._tasks:
            self._bars.remove_task(self._tasks.pop(folder))
        self._bars.update(self._all, completed=self._progress.done, info=self._progress.line())


@contextmanager
def view(plan: StudyPlan, options: Options) -> Iterator[Lines]:
    """Yield the display for stderr: bars on a terminal if there are trials, otherwise lines."""
    count = worker_count(plan.study, options) if plan.trials else 1
    with display(len(plan.trials), count, plan.study.baseline.spec.task.row) as lines:
        yield lines


@contextmanager
def display(total: int, count: int, row: TaskRow, split: str = "test") -> Iterator[Lines]:
    """Yield the display of ``total`` trials, whose scores are of a split."""
    if total:
        say(f"{total} to train, {min(count, total)} at once")
    if not (total and is_live()):
        yield Lines(total, count, row, split)
        return
    with bars() as progress:
        yield Screen(progress, total, count, row, split)
