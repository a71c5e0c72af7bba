"""Trainings of ``tiny`` and how they are stopped; runs that are trained once and then copied."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.stopping import stop_after
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord
from vitcli.runner.train.events import Event
from vitcli.runner.train.prepare import Request, resume_experiment
from vitcli.runner.train.train import train as run_training
from vitcli.runner.train.trainer import Hook


def train(
    experiment: Path | str,
    folder: Path | str,
    changes: dict[str, Any] | None = None,
    *,
    hooks: tuple[Hook, ...] = (),
    **options: Any,
) -> RunRecord:
    request = Request(output=Path(folder), **options)
    return run_training(load_experiment(str(experiment), changes), request, hooks)


def continue_run(run: RunDir, *, allow: bool = False, **given: Any) -> RunRecord:
    """Continue a run as its folder says; ``given`` are options, and changes of dotted fields."""
    options = {name: given.pop(name) for name in [*given] if "." not in name}
    experiment, path = resume_experiment(str(run.path), given)
    request = Request(output=path, resume=True, allow_inexact=allow, **options)
    return run_training(experiment, request)


def trains(call: Callable[..., RunRecord], *arguments: Any, **options: Any) -> bool:
    """Return whether ``train`` or ``continue_run`` has something to train."""
    events: list[Event] = []
    call(*arguments, on_event=events.append, **options)
    return bool(events)


def files(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def often(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return the values of a parameter; only ``-m ci`` tests those that are not chosen."""
    return [v if v in chosen else pytest.param(v, marks=pytest.mark.ci) for v in values]


@contextmanager
def stops_after(count: int) -> Iterator[None]:
    """Stop the training in the block after its flag has been read ``count`` times."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, count)
        with pytest.raises(StoppedError):
            yield


@pytest.fixture
def calm(here, copy_of_run) -> RunDir:
    return RunDir(copy_of_run(here / "calm"))


@pytest.fixture
def stopped(here, workshop) -> RunDir:
    """A run that was stopped inside its last epoch, with checkpoints at steps 5 and 6."""
    source = workshop / "stopped"
    if not source.exists():
        with stops_after(6):
            train(workshop / "tiny.yaml", source, {"train.epochs": 2})
    return RunDir(shutil.copytree(source, here / "stopped"))


@pytest.fixture
def named(here, workshop) -> None:
    (here / "experiments").mkdir()
    shutil.copy(workshop / "tiny.yaml", here / "experiments")
