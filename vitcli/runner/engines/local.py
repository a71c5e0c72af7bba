"""Training of trials on this machine, in worker processes. No torch.

If a signal kills a trial's process, or the process sends no event for long, a new process continues
the trial from its checkpoint. After several losses the trial counts as failed. A trial that ends
with an error or diverges has its result and is not tried again.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitcli.runner.engines.worker import CORES_VARIABLE
from vitcli.runner.errors import ResourceError
from vitcli.runner.limits import divide_cores
from vitcli.runner.train.events import Ended, Message, Started, TrialEvent, from_line
from vitcli.version import PACKAGE

MAX_ATTEMPTS = 3
POLL_SECONDS = 0.2
START_TIMEOUT = 4 * 3600.0
"""Seconds without an event that a trial may take to read the data."""
EXIT_TIMEOUT = 60.0
"""Seconds that a process may take to end when there are no more trials for it."""
MAX_WAIT = 1.0
"""Longest pause between two checks of the workers that is counted as silence of the workers. A
longer pause means that this process itself was suspended (Ctrl-Z)."""
EVENT_TIMEOUT = 3600.0
"""Seconds without an event that a running trial may take, such as for its evaluation."""
PROGRAM = ("-m", "vitcli.runner.engines.worker")
FATAL = (1, ResourceError.exit_code)
"""Exit codes after which a process may be unable to train another trial."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Setup:
    threads: int
    count: int = 1
    pin: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan that differ for this driver, such as ``device`` and ``data_dir``."""
    driver: int = 0


class Worker:
    def __init__(
        self,
        root: Path,
        name: str,
        setup: Setup,
        inbox: "queue.Queue[Any]",
        cores: Sequence[int] = (),
    ) -> None:
        self.folder: str | None = None
        """The trial, by its folder in the study."""
        self.request = dict(setup.request)
        self.cores = cores
        self.silence = 0.0
        """Seconds since the last event, without time in which this process was suspended."""
        self.is_training = self.is_hung = False
        self.log = root / "logs" / f"{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        environment = child_environment() | dict.fromkeys(THREAD_VARIABLES, str(setup.threads))
        environment[CORES_VARIABLE] = ",".join(map(str, cores))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                python_command(*PROGRAM, str(root)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the driver, which stops each worker once
                text=True,
            )
        assert self.process.stdout is not None
        threading.Thread(target=self._read, args=(inbox, self.process.stdout), daemon=True).start()

    def _read(self, inbox: "queue.Queue[Any]", stdout: IO[str]) -> None:
        try:
            with stdout:
                for line in stdout:
                    with contextlib.suppress(json.JSONDecodeError):  # a killed process cuts a line
                        inbox.put((self, from_line(line)))
        finally:
            inbox.put((self, None))

    def send(self, folder: str) -> None:
        """Send a trial to the process. A dead process is detected later, when its output ends."""
        self.folder, self.is_training = folder, False
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps({"folder": folder, "request": self.request}))
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def close_input(self) -> None:
        """Tell the process that there are no more trials, so that it ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def exit_reason(self) -> str:
        self.close_input()
        try:
            code = self.process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:  # its output has ended, but the process has not
            self.is_hung = True
            self.process.kill()
            code = self.process.wait()
        if self.is_hung:
            return "its process hung and was killed"
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"its process was killed by {name}{hint}"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with code {code}{f': {lines[-1]}' if lines else ''}"


class LocalEngine:
    """Worker processes: trials go in by their folders, events come out."""

    def __init__(self, root: Path, folders: Sequence[str], setup: Setup) -> None:
        self.root, self.setup = root, setup
        self.waiting = deque(folders)
        self.count = min(setup.count, len(folders))
        self._attempts = Counter[str]()
        no_pins: list[list[int]] = [[]] * self.count
        self._free_cores = divide_cores(self.count, setup.threads) if setup.pin else no_pins
        self.workers: list[Worker] = []
        self.stopping = False
        self._inbox: queue.Queue[tuple[Worker, TrialEvent | None]] = queue.Queue()
        self._started = 0

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        """Yield every event of every trial until no trial is left; call ``tick`` in between."""
        try:
            self._start_worker()  # alone, so that only one process downloads and decodes the data
            now = time.monotonic()
            while self.workers:
                tick()
                began, now = now, time.monotonic()
                self._kill_hung(min(now - began, MAX_WAIT))
                try:
                    worker, event = self._inbox.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                if event is None:
                    yield from self._handle_exit(worker)
                else:
                    yield from self._handle_event(worker, event)
        finally:
            for worker in self.workers:
                worker.process.kill()
            for worker in self.workers:
                worker.process.wait()
                worker.close_input()

    def cancel(self, folder: str) -> None:
        """Stop one running trial, which saves a checkpoint and ends as interrupted."""
        for worker in self.workers:
            if worker.folder == folder:
                worker.stop()

    def stop(self) -> None:
        """Start no further trial; running trials save a checkpoint. Workers end with the driver."""
        self.stopping = True
        self.waiting.clear()
        for worker in self.workers:
            worker.stop()

    def _start_worker(self) -> None:
        if self.waiting and not self.stopping:
            cores = self._free_cores.pop(0)
            driver = f"{self.setup.driver}." if self.setup.driver else ""
            name = f"worker{driver}{self._started}"
            worker = Worker(self.root, name, self.setup, self._inbox, cores)
            self._started += 1
            self.workers.append(worker)
            self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        if self.waiting and not self.stopping:
            folder = self.waiting.popleft()
            self._attempts[folder] += 1
            worker.send(folder)
        else:
            worker.folder = None
            worker.close_input()

    def _kill_hung(self, seconds: float) -> None:
        for worker in self.workers:
            worker.silence += seconds
            limit = EVENT_TIMEOUT if worker.is_training else START_TIMEOUT
            if worker.silence > (limit if worker.folder else EXIT_TIMEOUT):
                worker.is_hung = True
                worker.process.kill()

    def _handle_event(self, worker: Worker, trial_event: TrialEvent) -> Iterator[TrialEvent]:
        worker.silence = 0.0
        yield trial_event
        event = trial_event.event
        if isinstance(event, Started):
            worker.is_training = True
            while len(self.workers) < self.count and self.waiting and not self.stopping:
                self._start_worker()
        elif isinstance(event, Ended) and event.exit in FATAL:
            # After a bug or a failed GPU, another process takes the next trial.
            worker.folder = None
            worker.close_input()
        elif isinstance(event, Ended):
            self._assign(worker)

    def _handle_exit(self, worker: Worker) -> Iterator[TrialEvent]:
        self.workers.remove(worker)
        self._free_cores.append(list(worker.cores))
        folder, reason = worker.folder, worker.exit_reason()
        was_killed = worker.process.returncode < 0 and not self.stopping
        if folder is not None and was_killed and self._attempts[folder] < MAX_ATTEMPTS:
            self.waiting.appendleft(folder)
            text = f"{reason}; it continues from its checkpoint"
            yield TrialEvent(folder, Message(text=text))
        elif folder is not None:
            state = "interrupted" if self.stopping else "failed"
            yield TrialEvent(folder, Ended(state=state, reason=reason))
        if len(self.workers) < self.count:
            self._start_worker()


def python_command(*words: str) -> list[str]:
    """Return a command of Python, such as for ``-m`` and a module of this package.

    ``-P``: Python must not import a file or folder of the working folder, such as ``vitcli``.
    """
    return [sys.executable, "-P", *words]


def child_environment() -> dict[str, str]:
    """Return the environment of ``python_command``, which finds this package without a folder."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
