"""Trials of studies in this process, one after the other: a worker takes seconds to start."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import torch

from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Setup
from vitcli.runner.engines.worker import SharedData, limit_threads, run_trial
from vitcli.runner.train.events import Event, TrialEvent


class HereEngine:
    """The events of a trial arrive after its end."""

    def __init__(self, root: Path, folders: Sequence[str], setup: Setup) -> None:
        self.root, self.setup, self.waiting = root, setup, deque(folders)
        self.stopping = False
        self._load = SharedData(read_plan(root).get("data_hash"))

    def add(self, folder: str) -> None:
        self.waiting.append(folder)

    def cancel(self, folder: str) -> None:
        """Do nothing: it has ended."""

    def stop(self) -> None:
        self.stopping = True

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        while self.waiting and not self.stopping:
            tick()
            folder = self.waiting.popleft()
            sent: list[Event] = []
            threads = torch.get_num_threads()
            try:
                limit_threads(self.setup.threads)
                run_trial(
                    self.root, folder, send=sent.append, load=self._load, request=self.setup.request
                )
            finally:
                limit_threads(threads)
            for event in sent:
                yield TrialEvent(folder, event)
                tick()
