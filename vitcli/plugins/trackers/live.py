"""A hook that shows a training in a tracker while it runs."""

import queue
import threading
from functools import partial
from typing import Any

from vitcli.plugins.trackers.trackers import TRACKERS, send
from vitcli.runner.text import one_line
from vitcli.runner.train.trainer import Hook, Trainer

END_SECONDS = 5.0
"""Time that a tracker gets to send the last numbers, after the training has ended."""


class LiveTracker(Hook):
    """Feeds a tracker with the numbers of each epoch, from a thread that the training outruns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def on_start(self, trainer: Trainer) -> None:
        self._thread = threading.Thread(target=self._work, args=[trainer], daemon=True)
        self._thread.start()

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._waiting.put(record)

    def on_stop(self, trainer: Trainer) -> None:
        if self._thread is None:
            return
        self._waiting.put(None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._fail(trainer, f"it did not end within {END_SECONDS:g} s")

    def _work(self, trainer: Trainer) -> None:
        request = trainer.request
        records = iter(self._waiting.get, None)
        try:
            send(self.name, trainer.run, request.offline, records, request.on_message)
        except Exception as error:
            self._fail(trainer, one_line(f"{type(error).__name__}: {error}", 200))

    def _fail(self, trainer: Trainer, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            trainer.request.on_message(
                f"warning: {self.name} lacks numbers of this run ({reason}); metrics.jsonl has"
                f" all; send them again: {trainer.run.command('runs export')} --format {self.name}"
            )


wandb, mlflow, trackio = (partial(LiveTracker, name) for name in TRACKERS)
