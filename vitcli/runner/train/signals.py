"""Signals set a flag that the training loop reads between steps."""

import signal
import threading
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """While entered, notes the first SIGINT, SIGTERM or SIGHUP; a second signal acts at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each, previous in self._previous.items():
            signal.signal(each, previous)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._note) for each in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for each, previous in self._previous.items():
            signal.signal(each, previous)
