"""The display of the trials of a study or search."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress

from vitcli.cli.console import say
from vitcli.cli.live import Display, bars, scalars_text
from vitcli.core.spec.task import TaskRow
from vitcli.runner.report.report import Fact
from vitcli.runner.text import duration, quantity
from vitcli.runner.train import events
from vitcli.runner.train.events import Ended, Message, Started, Stopping, TrialEvent, seconds_left


class StudyDisplay(Display):
    def __init__(
        self, bars: Progress | None, total: int, count: int, row: TaskRow, split: str
    ) -> None:
        super().__init__(bars)
        self._total, self._count = total, max(1, min(count, total))
        self._row, self._split = row, split
        self._steps: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._durations: list[float] = []
        self._num_ended = 0
        self._printed: set[str] = set()
        self._show_all()

    def show(self, trial_event: TrialEvent) -> None:
        name, event = trial_event.folder, trial_event.event
        if isinstance(event, Started):
            self._began[name] = time.monotonic()
            self._steps[name] = event.epochs * event.steps_per_epoch
            self.move(name, event.first_step, self._steps[name], "starting ...")
        elif isinstance(event, events.Progress) and name in self._steps:
            self._left[name] = event.seconds_left
            info = f"epoch {event.epoch}  {scalars_text(event, self._row)}"
            self.move(name, event.step, self._steps[name], info)
        elif isinstance(event, Ended):
            self._end_trial(name, event)
        elif isinstance(event, Message):
            self._message(name, event.text)
        elif isinstance(event, Stopping):
            self.say("stopping: every running trial saves a checkpoint")
        self._show_all()

    def _end_trial(self, name: str, event: Ended) -> None:
        self.end(name)
        self._num_ended += 1
        self._left.pop(name, None)
        line = f"{name:<32}  {event.state}"
        if event.score is not None:
            line = f"{name:<32}  {self._split} {self._row.headline.text(event.score)}"
        if name in self._began:
            seconds = time.monotonic() - self._began.pop(name)
            self._durations.append(seconds)
            line += f"  {duration(seconds)}"
        self.say(line)
        if event.reason and event.state == "failed":
            self._message(name, event.reason)

    def _message(self, name: str, text: str) -> None:
        """Print each message only once, because all trials report the same about the data."""
        if text not in self._printed:
            self._printed.add(text)
            self.say(f"{name}: {text}" if name else text)

    def _show_all(self) -> None:
        now = time.monotonic()
        whole = [now - self._began[name] + left for name, left in self._left.items()]
        waiting = self._total - self._num_ended - len(self._left)
        usual = self._durations or whole
        info = f"{self._num_ended} of {quantity(self._total, 'trial')}"
        if left := seconds_left([*self._left.values()], waiting, usual, self._count):
            info += f", about {duration(left)} left"
        self.move("all", self._num_ended, self._total, info)


def time_fact(seconds: float | None, words: str) -> Fact:
    """Return the time of a training that is planned; ``words`` has a place for it."""
    text = "not known, because a data set is not on this machine"
    if seconds is not None:
        text = words.format(duration(seconds))
    return Fact("seconds", seconds, label="time", text=text)


@contextmanager
def display(
    total: int, count: int, row: TaskRow, split: str = "test", *, is_most: bool = False
) -> Iterator[StudyDisplay]:
    """Yield the display of ``total`` trials, or at most so many, whose scores are of a split."""
    if total:
        say(f"{'at most ' if is_most else ''}{total} to train, {min(count, total)} at once")
    with bars(total > 0) as progress:
        yield StudyDisplay(progress, total, count, row, split)
