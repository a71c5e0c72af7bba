"""Trainings of ``tiny`` and how they are stopped; runs that are trained once and then copied."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.stopping import stop_after
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import FinishedTraining, Request, resume_experiment, start

LISTENERS = ("on_event", "on_message", "load")


def train(
    experiment: Path | str,
    folder: Path | str,
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> FinishedTraining:
    """Start a training in a folder; ``options`` are those of a request and of ``start``."""
    heard = {name: options.pop(name) for name in LISTENERS if name in options}
    request = Request(output=Path(folder), **options)
    return start(load_experiment(str(experiment), changes), request, **heard)


def continue_run(run: RunDir, *, allow: bool = False, **given: Any) -> FinishedTraining:
    """Continue a run as its folder says; ``given`` are listeners, and changes of fields."""
    heard = {name: given.pop(name) for name in LISTENERS if name in given}
    experiment, path = resume_experiment(str(run.path), given)
    return start(experiment, Request(output=path, resume=True, allow_inexact=allow), **heard)


def files(folder: Path) -> dict[Path, bytes]:
    """Return the contents of the files below a folder, without those of locks."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@contextmanager
def stops_after(count: int) -> Iterator[None]:
    """Stop the training in the block after its flag has been read ``count`` times."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, count)
        with pytest.raises(StoppedError):
            yield


@pytest.fixture
def calm(here, copy_of_run) -> RunDir:
    """A finished run that nothing has stopped."""
    return RunDir(copy_of_run(here / "calm"))


@pytest.fixture
def stopped(here, workshop) -> RunDir:
    """A run that was stopped inside its second epoch, with checkpoints at steps 5 and 6."""
    source = workshop / "stopped"
    if not source.exists():
        with stops_after(6):
            train(workshop / "tiny.yaml", source)
    return RunDir(shutil.copytree(source, here / "stopped"))


@pytest.fixture
def named(here, workshop) -> None:
    """Let the experiment of these runs be found by its name."""
    (here / "experiments").mkdir()
    shutil.copy(workshop / "tiny.yaml", here / "experiments")
