"""Worker processes on this machine: jobs in, events out. One that dies or hangs costs no trial.

A trial whose process was killed by a signal, or said nothing for long, goes on from its checkpoint
in a new process; one that is lost again and again is given up. Errors and divergence are results
of the trial itself and are not tried again.
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
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vitcli.runner.train.events import Ended, Event, Message, Started, from_json
from vitcli.version import PACKAGE

POLL_SECONDS = 0.2
BEGINNING = 4 * 3600.0
"""Seconds that reading the data may take without a word."""
EXIT_TIMEOUT = 60.0
"""Seconds that a process may take to end when there are no more trials for it."""
LONG_WAIT = 1.0
"""A longer time between two looks was spent asleep (Ctrl-Z), and is not held against a worker."""
ATTEMPTS = 3
"""So often a trial is begun, in all."""
PATIENCE = 3600.0
"""Seconds for which a trial under way may say nothing; it reports twice a second, but evaluation
and saving take their time."""
PROGRAM = ("-m", "vitcli.runner.study.worker")
"""What a worker process runs."""
BUG = 1
"""The exit code of an error that nobody expected."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class TrialEvent:
    """What a trial tells, or the study itself where ``folder`` is empty."""

    folder: str
    event: Event


@dataclass(frozen=True)
class Job:
    """A trial's folder in the study."""

    folder: str
    attempt: int = 1


def from_line(line: str) -> TrialEvent:
    """Return the event in a line of JSON that a worker wrote."""
    data = json.loads(line)
    return TrialEvent(data.pop("folder"), from_json(data))


class Worker:
    """One process and the trial it is busy with."""

    def __init__(self, root: Path, index: int, threads: int, inbox: "queue.Queue[Any]") -> None:
        self.job: Job | None = None
        self.silence = 0.0
        """Seconds since its last event, as far as this process was awake to hear one."""
        self.trains = self.hangs = False
        self.log = root / "logs" / f"worker{index}.log"
        self.log.parent.mkdir(exist_ok=True)
        package = str(PACKAGE.parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                # -P: a folder called vitcli in the working folder is not this program.
                [sys.executable, "-P", *PROGRAM, str(root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the driver, which asks once
                text=True,
            )
        assert self.process.stdout is not None
        threading.Thread(target=self._read, args=(inbox, self.process.stdout), daemon=True).start()

    def _read(self, inbox: "queue.Queue[Any]", stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    inbox.put((self, from_line(line)))
        inbox.put((self, None))

    def give(self, job: Job) -> None:
        """A process that has died is noticed when its output ends."""
        self.job, self.trains = job, False
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps({"folder": job.folder}) + "\n")
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """No more trials: the process ends by itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def ask_to_stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def exit_reason(self) -> str:
        """Why the process ended: the signal that killed it, or the last line it wrote."""
        self.dismiss()
        try:
            code = self.process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:  # its output has ended, and it has not
            self.hangs = True
            self.process.kill()
            code = self.process.wait()
        if self.hangs:
            return "its process hung and was killed"
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"its process was killed by {name}{hint}"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with code {code}{f': {lines[-1]}' if lines else ''}"


class LocalEngine:
    """Runs jobs on ``count`` worker processes and yields what they say."""

    def __init__(self, root: Path, jobs: Sequence[Job], *, count: int, threads: int) -> None:
        self.root, self.threads, self.patience = root, threads, PATIENCE
        self.waiting = deque(jobs)
        self.count = min(count, len(jobs))
        self.workers: list[Worker] = []
        self.stopping = False
        self._inbox: queue.Queue[tuple[Worker, TrialEvent | None]] = queue.Queue()
        self._started = 0

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        """Every event of every trial, ``tick`` being called in between, until nothing is left.

        The first trial starts alone, so that data is fetched and decoded once for all.
        """
        try:
            self._start_worker()
            now = time.monotonic()
            while self.workers:
                tick()
                began, now = now, time.monotonic()
                self._kill_hanging(min(now - began, LONG_WAIT))
                try:
                    worker, event = self._inbox.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                yield from (
                    self._handle_exit(worker)
                    if event is None
                    else self._handle_event(worker, event)
                )
        finally:
            self._kill()

    def stop(self) -> None:
        """Nothing new is started; trials under way save a checkpoint."""
        self.stopping = True
        self.waiting.clear()
        for worker in self.workers:
            worker.ask_to_stop()

    def _start_worker(self) -> None:
        if self.waiting and not self.stopping:
            worker = Worker(self.root, self._started, self.threads, self._inbox)
            self._started += 1
            self.workers.append(worker)
            self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        if self.waiting and not self.stopping:
            worker.give(self.waiting.popleft())
        else:
            worker.job = None
            worker.dismiss()

    def _kill_hanging(self, seconds: float) -> None:
        for worker in self.workers:
            worker.silence += seconds
            limit = self.patience if worker.trains else BEGINNING
            if worker.silence > (limit if worker.job else EXIT_TIMEOUT):
                worker.hangs = True
                worker.process.kill()

    def _handle_event(self, worker: Worker, found: TrialEvent) -> Iterator[TrialEvent]:
        worker.silence = 0.0
        yield found
        event = found.event
        if isinstance(event, Started):
            worker.trains = True
            while len(self.workers) < self.count and self.waiting and not self.stopping:
                self._start_worker()
        elif isinstance(event, Ended) and event.exit == BUG:
            # The state of such a process is unknown, so another one takes the next trial.
            worker.job = None
            worker.dismiss()
        elif isinstance(event, Ended):
            self._assign(worker)

    def _handle_exit(self, worker: Worker) -> Iterator[TrialEvent]:
        self.workers.remove(worker)
        job, reason = worker.job, worker.exit_reason()
        killed = worker.process.returncode < 0
        if job is not None and killed and not self.stopping and job.attempt < ATTEMPTS:
            self.waiting.appendleft(Job(job.folder, job.attempt + 1))
            text = f"{reason}; it continues from its checkpoint"
            yield TrialEvent(job.folder, Message(text=text))
        elif job is not None:
            state = "interrupted" if self.stopping else "failed"
            yield TrialEvent(job.folder, Ended(state=state, reason=reason))
        if len(self.workers) < self.count:
            self._start_worker()

    def _kill(self) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
            worker.dismiss()
