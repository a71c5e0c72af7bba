"""The loop of a driver: it trains trials, and waits for trials of other drivers."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vitcli.runner.engines.local import LocalEngine, Setup
from vitcli.runner.errors import (
    ConfigError,
    InputError,
    InUseError,
    PartlyError,
    ResourceError,
    StoppedError,
    UserError,
)
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import headline_key, read_record
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, Started, Stopping, TrialEvent
from vitcli.runner.train.signals import StopFlag

POLL_SECONDS = 0.5
"""Time between two looks at a trial that another driver trains."""


class Drive:
    """Trains the trials of a study or of a search.

    Of a trial that another driver trains, it finds the result later. After ``budget`` seconds
    running trials are stopped; after ``max_failures`` failed trials in a row no other is begun.
    """

    def __init__(
        self,
        root: Path,
        setup: Setup,
        on_event: Callable[[TrialEvent], None],
        *,
        budget: float | None = None,
        max_failures: int | None = None,
    ) -> None:
        self.root, self.setup, self.on_event = root, setup, on_event
        self.failures: list[str] = []
        """Reasons of the failed trials since the last one that did not fail."""
        self._max_failures = max_failures
        self._deadline = time.monotonic() + budget if budget else None
        self._is_late = self._has_begun = False
        self._stop = StopFlag()

    def end(self, found: TrialEvent) -> None:
        """Note that a trial ended. A search tells its sampler."""

    def more(self) -> Sequence[str]:
        return ()

    def gives_up(self, found: TrialEvent) -> bool:
        return False

    def run(self, folders: Sequence[str]) -> None:
        with self._stop:
            while folders:
                folders = self._wait_for_others(self._train(folders))

    def is_stopped(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        self._is_late = self._is_late or late
        return self._is_late or self._stop.number is not None

    @property
    def has_failed(self) -> bool:
        return self._max_failures is not None and len(self.failures) >= self._max_failures

    def stopped_error(self, text: str) -> UserError:
        if self._stop.number:
            return StoppedError(f"stopped; {text}", self._stop.number)
        return PartlyError(f"the budget is used up; {text}")

    def _train(self, folders: Sequence[str]) -> list[str]:
        """Train trials; return those that another process trains."""
        engine = LocalEngine(self.root, folders, self.setup)
        busy = []

        def tick() -> None:
            if self.is_stopped() and not engine.stopping:
                self.on_event(TrialEvent("", Stopping()))
                engine.stop()

        with contextlib.closing(engine.events(tick)) as events:
            for found in events:
                if isinstance(found.event, Ended) and found.event.exit == InUseError.exit_code:
                    busy.append(found.folder)
                    if not engine.stopping:
                        engine.waiting.extend(self.more())
                    continue
                self._handle(found)
                if self.gives_up(found):
                    engine.cancel(found.folder)
                if self.has_failed and not engine.stopping:
                    engine.stop()
                if isinstance(found.event, Ended) and not engine.stopping:
                    engine.waiting.extend(self.more())
        return [] if engine.stopping else busy

    def _handle(self, found: TrialEvent) -> None:
        event = found.event
        self._has_begun = self._has_begun or isinstance(event, Started)
        if isinstance(event, Ended):
            if event.state == "failed":
                run = RunDir(self.root / found.folder)
                with contextlib.suppress(OSError):  # the others continue even on a full disk
                    if run.exists and read_record(run).status == "running":
                        run.set_status("failed", run.last_step(), event.reason)
                if event.stage == "data" and not self._has_begun:
                    raise error_of(event)
                self.failures.append(event.reason)
            elif event.state != "interrupted":
                self.failures.clear()
            self.end(found)
        self.on_event(found)

    def _wait_for_others(self, busy: Sequence[str]) -> list[str]:
        """Wait for trials of other processes; return those to train now."""
        if busy:
            text = f"{quantity(len(busy), 'trial')} trained by another process; waiting"
            self.on_event(TrialEvent("", Message(text=text)))
        waiting = list(busy)
        left: list[str] = []
        while waiting and not left and not self.is_stopped():
            for folder in list(waiting):
                run = RunDir(self.root / folder)
                if run.is_in_use():
                    continue
                waiting.remove(folder)
                if end := result_of(run):
                    self._handle(TrialEvent(folder, end))
                    left.extend(self.more())
                else:
                    left.append(folder)
            if waiting and not left:
                time.sleep(POLL_SECONDS)
        return [] if self.is_stopped() else left + waiting


def error_of(event: Ended) -> UserError:
    kinds: Mapping[int, type[UserError]] = {2: ConfigError, 5: ResourceError}
    return kinds.get(event.exit or 4, InputError)(event.reason)


def result_of(run: RunDir) -> Ended | None:
    """Return the end of a trial that has a result in its folder; None without a result."""
    record = read_record(run)
    if not record.has_result:
        return None
    score = record.number(headline_key(record.result, record.headline.name))
    if record.state == "finished" and score is None:
        return None
    return Ended(state=record.state, reason=record.reason, score=score)
