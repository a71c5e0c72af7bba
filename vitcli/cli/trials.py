"""What a person sees while a study runs: a bar a trial on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress, TaskID
from rich.text import Text

from vitcli.cli.console import clean, duration, is_live, percent, say
from vitcli.cli.live import bars
from vitcli.runner.study.plan import Options, StudyPlan, worker_count

LINE_SECONDS = 30.0


class Progression:
    """Which trials are done, which are under way, and how long the rest may take."""

    def __init__(self, todo: StudyPlan, count: int) -> None:
        self.total, self.count = len(todo.trials), max(1, min(count, len(todo.trials)))
        self.done = 0
        self.left: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._lengths: list[float] = []

    def take(self, event: dict[str, Any]) -> None:
        folder = event.get("folder", "")
        if event["kind"] == "started":
            self._begun[folder] = time.monotonic()
        elif event["kind"] == "progress":
            self.left[folder] = event["seconds_left"]
        elif event["kind"] == "end":
            self.done += 1
            self.left.pop(folder, None)
            if folder in self._begun:
                self._lengths.append(time.monotonic() - self._begun.pop(folder))

    def seconds_left(self) -> float | None:
        """Work left, spread over the workers; None until there is something to go by."""
        running = list(self.left.values())
        elapsed = [time.monotonic() - begun for begun in self._begun.values()]
        known = self._lengths or [a + b for a, b in zip(elapsed, running, strict=False)]
        if not known:
            return None
        waiting = max(0, self.total - self.done - len(self._begun))
        return (sum(running) + waiting * sum(known) / len(known)) / self.count

    def line(self) -> str:
        left = self.seconds_left()
        time_left = f", about {duration(left)} left" if left is not None else ""
        return f"{self.done} of {self.total} trials{time_left}"


def ended(event: dict[str, Any], seconds: float | None) -> str:
    """One trial's end in a line."""
    state = event["state"]
    what = f"test {percent(event['accuracy'])}" if state == "finished" else state
    took = f"  {duration(seconds)}" if seconds is not None else ""
    reason = f"  {event['reason']}" if event.get("reason") and state == "failed" else ""
    return f"{event['folder']:<32}  {what}{took}{reason}"


class Lines:
    """For logs: a line a trial, and one every half minute."""

    def __init__(self, todo: StudyPlan, count: int) -> None:
        self._progress = Progression(todo, count)
        self._began: dict[str, float] = {}
        self._running: dict[str, str] = {}
        self._told: set[str] = set()
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        say(text)
        self._last = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        self._progress.take(event)
        folder, kind = event.get("folder", ""), event["kind"]
        if kind == "started":
            self._began[folder] = time.monotonic()
        elif kind == "end":
            self._running.pop(folder, None)
            begun = self._began.pop(folder, None)
            self.say(ended(event, begun and time.monotonic() - begun))
        elif kind == "message":
            self._message(folder, event["text"])
        elif kind == "stopping":
            self.say("stopping: every trial under way saves a checkpoint")
        elif kind == "progress":
            self._running[folder] = f"{folder} epoch {event['epoch']} loss {event['loss']:.3f}"
            if time.monotonic() - self._last > LINE_SECONDS:
                self.say(f"{self._progress.line()}; {'; '.join(self._running.values())}")

    def _message(self, folder: str, text: str) -> None:
        """Each trial says the same about the data: once is enough."""
        if text not in self._told:
            self._told.add(text)
            self.say(f"{folder}: {text}")


class Screen(Lines):
    """For a terminal: finished trials scroll by above a bar for each that is under way."""

    def __init__(self, todo: StudyPlan, count: int, progress: Progress) -> None:
        super().__init__(todo, count)
        self._bars = progress
        self._tasks: dict[str, TaskID] = {}
        self._all = progress.add_task("all", total=len(todo.trials), info="starting ...")
        self._steps: dict[str, int] = {}

    def say(self, text: str) -> None:
        self._bars.console.print(Text(clean(text)))
        self._last = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        super().show(event)
        folder, kind = event.get("folder", ""), event["kind"]
        if kind == "started":
            steps = event["epochs"] * event["steps_per_epoch"]
            done = event["first_step"]
            self._tasks[folder] = self._bars.add_task(folder, total=steps, completed=done, info="")
        elif kind == "progress" and folder in self._tasks:
            info = f"epoch {event['epoch']}  acc {percent(event['accuracy'], 0)}"
            self._bars.update(self._tasks[folder], completed=event["step"], info=info)
        elif kind == "end" and folder in self._tasks:
            self._bars.remove_task(self._tasks.pop(folder))
        self._bars.update(self._all, completed=self._progress.done, info=self._progress.line())


@contextmanager
def view(todo: StudyPlan, options: Options) -> Iterator[Lines]:
    """The display that fits the place where stderr goes; none where nothing is to be done."""
    count = worker_count(todo.study, options) if todo.trials else 1
    if todo.trials:
        say(f"{len(todo.trials)} to train, {min(count, len(todo.trials))} at once")
    if not (todo.trials and is_live()):
        yield Lines(todo, count)
        return
    with bars() as progress:
        yield Screen(todo, count, progress)
