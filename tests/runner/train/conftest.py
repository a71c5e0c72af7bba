"""Runs of ``tiny`` that are trained once per worker and copied for each test."""

import shutil

import pytest

from tests.stopping import stop_after
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start


@pytest.fixture
def calm(here, copy_of_run) -> RunDir:
    """A finished run that nothing has stopped."""
    return RunDir(copy_of_run(here / "calm"))


@pytest.fixture
def stopped(here, workshop) -> RunDir:
    """A run that was stopped inside its second epoch, with checkpoints at steps 5 and 6."""
    source = workshop / "stopped"
    if not source.exists():
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, 6)
            with pytest.raises(StoppedError):
                start(load_experiment(str(workshop / "tiny.yaml")), Request(output=source))
    return RunDir(shutil.copytree(source, here / "stopped"))


@pytest.fixture
def named(here, workshop) -> None:
    """Let the experiment of these runs be found by its name."""
    (here / "experiments").mkdir()
    shutil.copy(workshop / "tiny.yaml", here / "experiments")
