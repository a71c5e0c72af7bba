"""Signals set a flag that the training loop reads between steps."""

import signal
import threading
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """While entered, notes the first SIGINT, SIGTERM or SIGHUP; a second signal acts at once.

    A signal that the process ignores, such as SIGHUP below ``nohup``, stays ignored.
    With ``again=False`` only the first signal does something, also afterwards. That suits a rank of
    torchrun, which passes signals on, and sends SIGTERM to the ranks that are left when one fails.
    """

    is_patient = False
    """Whether a second signal does nothing in this whole process."""

    def __init__(self, *, again: bool = True) -> None:
        self.again = again
        self.number: int | None = None
        self._previous: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if self.is_patient or not self.again:
            return
        for each, previous in self._previous.items():
            signal.signal(each, previous)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in STOPPING if signal.getsignal(n) is not signal.SIG_IGN]
            self._previous = {each: signal.signal(each, self._note) for each in heard}
        return self

    def __exit__(self, *_: object) -> None:
        if not self.again:
            return
        for each, previous in self._previous.items():
            signal.signal(each, previous)
