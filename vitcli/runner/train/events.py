"""Events of a training, for displays and drivers: plain data that can be sent as JSON. No torch."""

import heapq
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, get_args


@dataclass(frozen=True, kw_only=True)
class Started:
    """A training begins or continues."""

    folder: str
    task: str
    """Row of the table of tasks. It says how the numbers are written."""
    headline: str
    """Metric that is shown of each split."""
    data: str
    device: str
    precision: str
    kernels: str
    parameters: int
    num_train: int
    num_test: int
    epochs: int
    steps_per_epoch: int
    first_step: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Steps were taken in an epoch (counted from 1)."""

    epoch: int
    batch: int
    step: int
    scalars: dict[str, float]
    """The task's scalars of the last step."""
    lr: float
    images_per_second: float
    seconds_left: float
    gpu_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class EpochDone:
    """An epoch ended."""

    record: dict[str, Any]
    """The line that was added to metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A sentence for the user."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Every running training saves a checkpoint and ends."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial ended."""

    state: str
    """finished, diverged, interrupted or failed."""
    reason: str = ""
    score: float | None = None
    """The headline number of a finished trial."""
    exit: int | None = None
    """Exit code of a failed trial, if an error of vitcli ended it."""
    stage: str = ""
    """``data`` if a trial failed before its images were read."""


Event = Started | Progress | EpochDone | Message | Stopping | Ended
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


@dataclass(frozen=True)
class TrialEvent:
    """An event of a trial, or of the study if ``folder`` is empty."""

    folder: str
    event: Event


def to_line(trial: TrialEvent) -> str:
    event = {"kind": type(trial.event).__name__, **asdict(trial.event)}
    return json.dumps({"folder": trial.folder, "event": event}) + "\n"


def from_line(line: str) -> TrialEvent:
    data = json.loads(line)
    kind = KINDS[data["event"].pop("kind")]
    return TrialEvent(data["folder"], kind(**data["event"]))


def seconds_left(
    begun: Sequence[float], waiting: int, usual: Sequence[float], count: int
) -> float | None:
    """Return the time until ``count`` workers have ended all trials; a free one takes the next.

    It is None if no trial is known to take a time. ``begun`` are the seconds that are left of some
    trials; each of the others, which are ``waiting``, takes the mean of ``usual``.
    """
    if not (begun or usual):
        return None
    busy = [0.0] * max(1, count)
    for seconds in [*begun, *[fmean(usual or begun)] * waiting]:
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy)
