"""Stop a training after a number of steps, without signals."""

import signal

from vitcli.runner.train import hooks
from vitcli.runner.train.signals import StopFlag


class StopAt(StopFlag):
    """A stop flag that is set after it has been read ``step`` times."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.seen = 0

    @property
    def number(self) -> int | None:
        self.seen += 1
        return signal.SIGTERM if self.seen >= self.step else None

    @number.setter
    def number(self, number: int | None) -> None:
        """Set by the base class and by signals."""


def stop_after(monkeypatch, count: int) -> None:
    monkeypatch.setattr(hooks, "StopFlag", lambda **_: StopAt(count))
