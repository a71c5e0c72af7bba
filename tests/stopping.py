"""Stop a training after a number of steps, without signals."""

import signal

from vitcli.runner.train import trainer as training
from vitcli.runner.train.signals import StopFlag


class StopAt(StopFlag):
    """A stop flag that is set after it has been read ``step`` times."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.seen = 0

    @property
    def number(self) -> int | None:  # type: ignore[override]
        self.seen += 1
        return signal.SIGTERM if self.seen >= self.step else None


def stop_after(monkeypatch, count: int) -> None:
    original = training.Trainer.train
    monkeypatch.setattr(
        training.Trainer, "train", lambda self, _stop, *epoch: original(self, StopAt(count), *epoch)
    )
