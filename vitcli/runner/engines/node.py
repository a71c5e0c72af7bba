"""One trial on a machine of a cluster: a worker process, whose events go into a shared file."""

import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.runner.engines.engine import Job
from vitcli.runner.engines.local import LocalEngine
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.events import Event, TrialEvent, to_line
from vitcli.version import __version__

EVENTS = "logs/{}.events"
"""File with the events of a trial, below the folder of the study; the driver removes it."""
CONTROL = "logs/{}.control"
"""File in which the driver asks a trial to stop. It exists from the start, and is changed in place,
because a network file system may show a new file late."""
STOP = "stop"
CONTROL_SECONDS = 1.0
"""Time between two looks at the file."""
SHARED = "logs/shared.txt"
"""File with a random word, by which a machine knows that it sees the driver's folder."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a machine must share with the driver: the folder and the version of vitcli."""

    root: str
    token: str
    """The random word in the folder."""
    folder: str
    """Working folder of the driver."""
    vitcli: str = __version__

    def find_problem(self) -> str:
        """Return why this machine cannot train trials for the driver; '' if it can."""
        name = platform.node()
        if read_token(Path(self.root)) != self.token:
            return (
                f"{name} does not see the folder {self.root} of this machine; choose a folder on a"
                " file system that all machines share: -o FOLDER"
            )
        if not Path(self.folder).is_dir():
            return f"{name} has no folder {self.folder}; start vitcli in a folder that it shares"
        if __version__ != self.vitcli:
            return f"{name} has vitcli {__version__}, this machine {self.vitcli}; install the same"
        return ""


def read_token(root: Path) -> str:
    """Return the random word of a folder; '' without one."""
    try:
        return (root / SHARED).read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class NodeTrial:
    """A trial to train on the machine that calls ``start``."""

    place: Place
    job: Job
    key: str
    """Name of the files of events and of the log."""
    threads: int
    request: Mapping[str, Any]

    def start(self) -> "NodeRun":
        """Begin the training in a thread of its own, which no exception of a scheduler hits."""
        return NodeRun(self)

    def last_step(self) -> int:
        """Return the step of the trial's newest checkpoint; 0 without one."""
        return RunDir(Path(self.place.root) / self.job.folder).last_step()

    def write(self, event: Event) -> None:
        with (Path(self.place.root) / EVENTS.format(self.key)).open("a") as file:
            file.write(to_line(TrialEvent(self.job.folder, event)))


class NodeRun:
    """The thread that feeds a worker process and writes its events."""

    def __init__(self, trial: NodeTrial) -> None:
        self._trial = trial
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def is_alive(self, timeout: float = 0.2) -> bool:
        """Return whether the trial still runs, after a wait of at most ``timeout`` seconds."""
        self._thread.join(timeout)
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the end, and raise what went wrong in the thread."""
        while self.is_alive():
            pass
        if self._error:
            raise self._error

    def _is_asked_to_stop(self) -> bool:
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + CONTROL_SECONDS
        try:
            path = Path(self._trial.place.root) / CONTROL.format(self._trial.key)
            return path.read_text() == STOP
        except OSError:
            return False

    def _run(self) -> None:
        try:
            self._write_events()
        except BaseException as error:
            self._error = error

    def _write_events(self) -> None:
        trial, root = self._trial, Path(self._trial.place.root)
        engine = LocalEngine(
            root,
            [trial.job],
            count=1,
            threads=trial.threads,
            request=trial.request,
            name=f"worker-{trial.key}",
            folder=Path(trial.place.folder),
        )

        def tick() -> None:
            if not engine.stopping and (self._stop.is_set() or self._is_asked_to_stop()):
                engine.stop()

        with (root / EVENTS.format(trial.key)).open("a", buffering=1) as file:
            for event in engine.events(tick):
                file.write(to_line(event))
