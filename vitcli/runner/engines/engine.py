"""What every engine is: jobs go in, events come out, and a stop saves checkpoints. No torch."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from vitcli.runner.train.events import TrialEvent

MAX_ATTEMPTS = 3
"""Number of times that a trial is begun, at most."""


@dataclass(frozen=True)
class Job:
    """A trial to train, by its folder in the study."""

    folder: str
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a person may ask of an engine. None and empty mean the engine's own choice."""

    engine: str = "local"
    """A row of ``ENGINES``."""
    address: str | None = None
    """Address of a running Ray cluster; ``auto`` finds the one of this machine."""
    cpus: int | None = None
    """CPU cores of each trial; by default its threads."""
    gpus: float | None = None
    """GPUs of each trial; with Ray, a fraction lets trials share a GPU."""
    memory: float | None = None
    """GB of memory of each trial."""
    partition: str | None = None
    """Slurm partition."""
    minutes: int | None = None
    """Time limit of a Slurm job; a trial that needs longer continues in another job."""
    sbatch: Mapping[str, str] = field(default_factory=dict)
    """Other parameters of ``sbatch``, such as account or qos."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine trains the trials of one study."""

    threads: int
    """CPU threads of each trial."""
    count: int | None = None
    """Number of trials at once, at most; None for as many as there is room for."""
    pin: bool = False
    """Pin each trial on this machine to CPU cores of its own."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan that differ for this driver, such as ``device`` and ``data_dir``."""
    in_process: bool = False
    """Train in this process, one trial at a time."""
    driver: int = 0
    """Number of the driver, if several train the trials of one folder."""
    cluster: Cluster = field(default_factory=Cluster)


class Engine(Protocol):
    """A place where trials are trained."""

    stopping: bool
    """Whether no further trial is begun."""
    outlives_driver: bool
    """Whether trials go on without the driver."""

    def add(self, job: Job) -> None:
        """Add a job. A caller adds it at the latest before it asks for the next event."""

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        """Yield the events of every trial until no job is left; call ``tick`` in between.

        A trial that a process was killed in continues from its checkpoint, at most
        ``MAX_ATTEMPTS`` times in all. If the generator is closed early, its trials end.
        """

    def stop(self, *, leave: bool = False) -> None:
        """Start no further trial; running trials save a checkpoint and end.

        With ``leave``, an engine whose trials outlive the driver lets them run on.
        """


@runtime_checkable
class Cancels(Protocol):
    """An engine that can stop a single trial."""

    def cancel(self, folder: str) -> None:
        """Stop one running trial, which saves a checkpoint and ends as interrupted."""
