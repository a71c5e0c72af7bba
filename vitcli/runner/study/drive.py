"""The loop of a driver: an engine trains trials, and trials of other drivers are waited for."""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from vitcli.runner.engines.engine import Engine, Job, Setup
from vitcli.runner.engines.make import make_engine
from vitcli.runner.engines.remote import result_of
from vitcli.runner.errors import (
    ConfigError,
    InputError,
    InUseError,
    PartlyError,
    ResourceError,
    StoppedError,
    UserError,
)
from vitcli.runner.run.folder import RESULT_STATES, RunDir
from vitcli.runner.run.listing import is_in_use
from vitcli.runner.study.plan import Options, StudyPlan, current_states
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, Started, Stopping, TrialEvent
from vitcli.runner.train.signals import StopFlag

POLL_SECONDS = 0.5
"""Time between two looks at a trial that another driver trains."""
HANG_UP = (signal.SIGHUP, signal.SIGTERM)
"""Signals after which an engine whose jobs outlive the driver keeps them: a closed terminal."""
LEFT = "the jobs go on without this process; the same command finds them again"


class Drive:
    """Trains the trials of a plan that have no result.

    Several drivers may do so in one folder. The trial's own lock lets one of them train it; the
    others come back later and find its result, or train it themselves.
    """

    def __init__(
        self,
        plan: StudyPlan,
        options: Options,
        setup: Setup,
        on_event: Callable[[TrialEvent], None],
    ) -> None:
        self.plan, self.options, self.setup, self.on_event = plan, options, setup, on_event
        self._deadline = time.monotonic() + options.budget if options.budget else None
        self._is_late = self._has_begun = False
        self._stop = StopFlag()

    def run(self) -> None:
        """Train until every trial has ended.

        Raises:
            StoppedError: A signal stopped the study.
            PartlyError: The time budget was used up.
            UserError: The images of the study cannot be read.
        """
        with self._stop:
            folders = [trial.folder for trial in self.plan.trials]
            while folders:
                folders = self._wait_for_others(self._train(folders))
        if self._is_stopped():
            self._raise_unless_done()

    def _is_stopped(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        self._is_late = self._is_late or late
        return self._is_late or self._stop.number is not None

    def _train(self, folders: Sequence[str]) -> list[str]:
        """Train trials; return those that another process trains."""
        jobs = [Job(folder) for folder in folders]
        engine = make_engine(self.setup.cluster.engine, self.plan.root, jobs, self.setup)
        busy = []
        with contextlib.closing(engine.events(lambda: self._tick(engine))) as events:
            for found in events:
                if is_busy(found):
                    busy.append(found.folder)
                else:
                    self._handle(found, engine)
        return [] if engine.stopping else busy

    def _tick(self, engine: Engine) -> None:
        if self._is_stopped() and not engine.stopping:
            leave = engine.outlives_driver and self._stop.number in HANG_UP
            self.on_event(TrialEvent("", Message(text=LEFT) if leave else Stopping()))
            engine.stop(leave=leave)

    def _handle(self, found: TrialEvent, engine: Engine) -> None:
        event = found.event
        self._has_begun = self._has_begun or isinstance(event, Started)
        if isinstance(event, Ended) and event.state == "failed":
            mark_failed(RunDir(self.plan.root / found.folder), event.reason)
            if event.stage == "data" and not self._has_begun:
                raise error_of(event)
            if self.options.fail_fast and not engine.stopping:
                engine.stop()
        self.on_event(found)

    def _wait_for_others(self, busy: Sequence[str]) -> list[str]:
        """Wait for trials of other processes; return those that they left without a result."""
        if busy:
            text = f"{quantity(len(busy), 'trial')} trained by another process; waiting"
            self.on_event(TrialEvent("", Message(text=text)))
        waiting = list(busy)
        left: list[str] = []
        while waiting and not left and not self._is_stopped():
            for folder in list(waiting):
                run = RunDir(self.plan.root / folder)
                if is_in_use(run):
                    continue
                waiting.remove(folder)
                if end := result_of(run):
                    self.on_event(TrialEvent(folder, end))
                else:
                    left.append(folder)
            if waiting and not left:
                time.sleep(POLL_SECONDS)
        return [] if self._is_stopped() else left + waiting

    def _raise_unless_done(self) -> None:
        """Raise an error that says how to continue, unless every trial has a result."""
        states = current_states(self.plan)
        done = sum(state.state in RESULT_STATES for state in states.values())
        if done == len(states):
            return
        command = self.options.command
        text = f"{done} of {quantity(len(states), 'trial')} done. Continue: {command}"
        if self._stop.number:
            raise StoppedError(f"stopped; {text}", self._stop.number)
        raise PartlyError(f"the budget is used up; {text}")


def is_busy(found: TrialEvent) -> bool:
    """Return whether a trial was not trained because another process trains it."""
    event = found.event
    return isinstance(event, Ended) and event.exit == InUseError.exit_code


def mark_failed(run: RunDir, reason: str) -> None:
    """Write the reason of a failure into the run folder, where a killed worker left "running"."""
    with contextlib.suppress(OSError):  # the other trials continue even on a full disk
        if run.exists and run.status()["state"] == "running":
            run.set_status("failed", run.last_step(), reason)


def error_of(event: Ended) -> UserError:
    """Return the error that ended a trial."""
    kinds: Mapping[int, type[UserError]] = {2: ConfigError, 5: ResourceError}
    return kinds.get(event.exit or 4, InputError)(event.reason)
