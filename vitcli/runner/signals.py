"""Signals set a flag that the training loop reads between steps."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """While entered, the first SIGINT, SIGTERM or SIGHUP is only noted; a second acts at once."""

    def __init__(self, on_message: Callable[[str], None]) -> None:
        self.number: int | None = None
        self._on_message = on_message
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each, previous in self._previous.items():
            signal.signal(each, previous)
        name = signal.Signals(number).name
        self._on_message(f"{name}: saving a checkpoint after this step (again: stop at once)")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._note) for each in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for each, previous in self._previous.items():
            signal.signal(each, previous)
