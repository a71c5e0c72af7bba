"""Trials of studies in this process, one after the other: a worker takes seconds to start."""

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import POLL_SECONDS, Setup
from vitcli.runner.engines.worker import SharedData, limit_threads, run_trial
from vitcli.runner.train.events import Event, TrialEvent
from vitcli.runner.train.signals import StopFlag

FLAGS: list[StopFlag] = []
"""Those of trainings in threads, which hear no signal."""


def note_flag(flag: StopFlag, init: Any = StopFlag.__init__, **options: Any) -> None:
    init(flag, **options)
    if threading.current_thread() is not threading.main_thread():
        FLAGS.append(flag)


StopFlag.__init__ = note_flag  # type: ignore[method-assign,assignment]


def stop_trainings() -> None:
    for flag in FLAGS:
        flag.number = signal.SIGINT


class HereEngine:
    """Each trial trains in a thread, so that events arrive and signals are heard meanwhile."""

    def __init__(self, root: Path, folders: Sequence[str], setup: Setup) -> None:
        self.root, self.setup, self.waiting = root, setup, deque(folders)
        self.stopping, self.running = False, ""
        self._load = SharedData(read_plan(root).get("data_hash"))

    def add(self, folder: str) -> None:
        self.waiting.append(folder)

    def cancel(self, folder: str) -> None:
        if self.running == folder:
            stop_trainings()

    def stop(self) -> None:
        self.stopping = True

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        inbox: queue.Queue[TrialEvent] = queue.Queue()
        while self.waiting and not self.stopping:
            self.running = self.waiting.popleft()
            thread = threading.Thread(target=self._train, args=(self.running, inbox))
            thread.start()
            try:
                while thread.is_alive() or not inbox.empty():
                    tick()
                    if self.stopping:
                        stop_trainings()
                    try:
                        yield inbox.get(timeout=POLL_SECONDS)
                    except queue.Empty:
                        continue
            finally:
                while thread.is_alive():  # an error or a second signal
                    stop_trainings()
                    thread.join(POLL_SECONDS)

    def _train(self, folder: str, inbox: "queue.Queue[TrialEvent]") -> None:
        limit_threads(self.setup.threads)  # of this thread only

        def send(event: Event) -> None:
            inbox.put(TrialEvent(folder, event))

        run_trial(self.root, folder, send=send, load=self._load, request=self.setup.request)
