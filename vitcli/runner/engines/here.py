"""Trials in this process, one after the other: they use parts that no other process can load."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.engine import Job, Setup
from vitcli.runner.engines.worker import SharedData, limit_threads, run_trial
from vitcli.runner.train.events import Event, TrialEvent
from vitcli.runner.train.signals import StopFlag

POLL_SECONDS = 0.2


class HereEngine:
    """Trains each job in a thread, so that events arrive and signals are heard meanwhile."""

    outlives_driver = False

    def __init__(self, root: Path, jobs: Sequence[Job], setup: Setup) -> None:
        self.root, self.setup, self.waiting = root, setup, deque(jobs)
        self.stopping = False
        self._load = SharedData(read_plan(root).get("data_hash"))

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def stop(self, *, leave: bool = False) -> None:
        """Start no further trial; the running one saves a checkpoint."""
        self.stopping = True

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        """Yield every event of every trial until no trial is left; call ``tick`` in between."""
        inbox: queue.Queue[TrialEvent] = queue.Queue()
        while self.waiting and not self.stopping:
            job = self.waiting.popleft()
            thread = threading.Thread(target=self._train, args=(job.folder, inbox))
            thread.start()
            try:
                while thread.is_alive() or not inbox.empty():
                    tick()
                    if self.stopping:
                        StopFlag.stop_threads()
                    try:
                        yield inbox.get(timeout=POLL_SECONDS)
                    except queue.Empty:
                        continue
            finally:
                while thread.is_alive():  # an error or a second signal
                    StopFlag.stop_threads()
                    thread.join(POLL_SECONDS)

    def _train(self, folder: str, inbox: "queue.Queue[TrialEvent]") -> None:
        limit_threads(self.setup.threads)  # of this thread only

        def send(event: Event) -> None:
            inbox.put(TrialEvent(folder, event))

        run_trial(self.root, folder, send=send, load=self._load, request=self.setup.request)
