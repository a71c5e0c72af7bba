"""File systems that refuse: too few file handles, no locks; trials of which every one fails."""

import errno
import math
import os
import resource
from pathlib import Path

import pytest

from tests.cli import commands
from tests.cli.conftest import SEARCH, STUDY
from tests.runner.train.conftest import files, train
from tests.same_run import assert_same_run
from vitcli.core.objectives.classify import Classify
from vitcli.runner.errors import ResourceError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train.trainer import Hook


class FewHandles(Hook):
    """Leaves the process no free file handle from the second epoch on."""

    def __init__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def on_epoch(self, trainer, record):
        if record["epoch"] == 2:
            used = os.open("/", os.O_RDONLY)
            os.close(used)
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, self.limits[1]))

    def on_stop(self, trainer):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def test_a_training_without_a_free_file_handle_stops_and_can_continue(tiny, here, copy_of_run):
    with pytest.raises(ResourceError, match=r"too many open files; raise the limit \(ulimit -n\)"):
        train(tiny, "run", hooks=(FewHandles(),))
    run = RunDir(here / "run")
    assert read_record(run).step == 10
    train(tiny, "run", resume=True)
    assert_same_run(RunDir(copy_of_run(here / "calm")), run)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_nothing_is_trained_and_nothing_lost(
    tiny, here, copy_of_run, number, monkeypatch
):
    """As on a network file system whose server has no lock daemon."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before = files(copy_of_run(here / "calm"))
    monkeypatch.setattr("fcntl.flock", flock)
    for words in (("-o", "run"), ("-o", "calm", "--rerun")):
        assert ".lock: " in commands.said(5, "train", tiny, *words)
    assert not Path("run/config.yaml").exists()
    assert files(here / "calm") == before


def failing(self, batch):
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def diverging(self, batch, losses=Classify.losses):
    return {name: value * math.nan for name, value in losses(self, batch).items()}


@pytest.mark.usefixtures("without_workers", "sketched")
@pytest.mark.parametrize(
    ("losses", "command", "code", "shown", "told"),
    [
        (failing, "ablate mine.yaml", 3, "2 of 2 failed", "4 of 4 trials have no result"),
        (diverging, "ablate mine.yaml", 0, "2 of 2", "report.html"),
        (failing, "search searched.yaml -j 1", 3, "(3 failed)", "no trial has a score"),
        (diverging, "search searched.yaml -j 1", 0, "(3 diverged)", "no trial has a score"),
        (failing, "decide -s train.epochs=1 --against tiny.yaml", 5, "", "quota used up"),
        (diverging, "decide -s train.epochs=1 --against tiny.yaml", 6, "diverged", "diverged"),
    ],
)
def test_of_a_study_without_a_result_the_output_says_so(
    tiny, losses, command, code, shown, told, monkeypatch
):
    """A trial that failed is trained again by the same command; one that diverged is not."""
    Path("mine.yaml").write_text(STUDY.replace("epochs: 2", "epochs: 1"))
    Path("searched.yaml").write_text(SEARCH)
    with monkeypatch.context() as patch:
        patch.setattr(Classify, "losses", losses)
        out, talk = commands.typed(command, code)
    assert shown in out
    assert told in talk
    assert "quota used up while writing" in talk or losses is diverging
    if "decide" not in command:
        out, _ = commands.typed(command)
        assert ("failed" in out, "diverged" in out) == (False, losses is diverging)
