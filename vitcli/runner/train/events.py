"""What a training tells whoever watches it: plain data that also travels as JSON. No torch."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Started:
    """A training begins or continues."""

    folder: str
    task: str
    """Row of the table of tasks: it says how the reported numbers are written."""
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
    """Some steps were taken in an epoch (counted from 1)."""

    epoch: int
    batch: int
    step: int
    scalars: dict[str, float]
    """What the task reports of the last step."""
    lr: float
    images_per_second: float
    seconds_left: float
    gpu_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class EpochDone:
    """An epoch ended."""

    record: dict[str, Any]
    """The line that metrics.jsonl gained."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A sentence for the person who watches."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Every training under way saves a checkpoint and ends."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial ended."""

    state: str
    """finished, diverged, interrupted or failed."""
    reason: str = ""
    score: float | None = None
    """The headline number of a finished trial."""
    exit: int | None = None
    """The exit code of a failed trial, where an error of vitcli ended it."""
    stage: str = ""
    """``data`` where a trial failed before its images were read."""


Event = Started | Progress | EpochDone | Message | Stopping | Ended
KINDS: dict[str, type[Event]] = {
    "started": Started,
    "progress": Progress,
    "epoch": EpochDone,
    "message": Message,
    "stopping": Stopping,
    "end": Ended,
}


def to_json(event: Event) -> dict[str, Any]:
    """Return an event as data that JSON can hold."""
    (kind,) = [name for name, cls in KINDS.items() if type(event) is cls]
    return {"kind": kind, **asdict(event)}


def from_json(data: dict[str, Any]) -> Event:
    """Return the event that ``to_json`` made the data of.

    Raises:
        KeyError: There is no such kind.
        TypeError: The fields are those of another kind.
    """
    fields = dict(data)
    return KINDS[fields.pop("kind")](**fields)
