"""Rows of the fault matrix (README.md beside this file) that no campaign is about."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.patience import HANG
from tests.runner.train.conftest import stops_after, train
from tests.same_run import assert_same_run
from vitcli.runner.errors import ResourceError
from vitcli.runner.run.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.record import read_record
from vitcli.runner.train.events import EpochDone, Event


@pytest.mark.ci
def test_a_training_that_was_suspended_and_lost_its_reader_goes_on_to_the_same_bits(
    tiny, here, environment, copy_of_run
):
    command = [sys.executable, "-m", "vitcli", "train", str(tiny), "-o", "run"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, env=environment, **streams)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    while not steps(here / "run" / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(5):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    assert process.wait(HANG) == 0
    assert read_record(here / "run").state == "finished"
    assert_same_run(RunDir(copy_of_run(here / "calm")), RunDir(here / "run"))


def test_a_run_folder_renamed_under_its_training_is_not_made_again(tiny, here, copy_of_run):
    def rename(event: Event) -> None:
        if isinstance(event, EpochDone) and event.record["epoch"] == 3:
            (here / "moving").rename(here / "moved")

    with pytest.raises(ResourceError, match="removed or renamed"):
        train(tiny, here / "moving", on_event=rename)
    assert not (here / "moving").exists()
    assert steps(here / "moved" / "checkpoints")[0] == 15
    train(tiny, here / "moved", resume=True)
    assert_same_run(RunDir(copy_of_run(here / "calm")), RunDir(here / "moved"))


def test_who_reads_while_a_checkpoint_is_written_sees_a_whole_one(tmp_path):
    import torch

    ended = threading.Event()

    def write() -> None:
        for step in range(1, 40):
            values = {"model.a": torch.full((20_000,), float(step))}
            save_checkpoint(tmp_path, Checkpoint(step, values, {"weights": "model"}))
        ended.set()

    save_checkpoint(tmp_path, Checkpoint(0, {"model.a": torch.zeros(20_000)}, {}))
    writer = threading.Thread(target=write)
    writer.start()
    messages: list[str] = []
    seen = []
    while not ended.is_set():
        checkpoint = latest_checkpoint(tmp_path, messages.append)
        assert checkpoint is not None
        assert (checkpoint.tensors["model.a"] == checkpoint.step).all()
        seen.append(checkpoint.step)
    writer.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
    assert messages == []


@pytest.mark.parametrize("shift", [-7200.0, 3.15e8])
def test_a_clock_that_jumps_doubles_and_loses_no_point(tiny, here, monkeypatch, shift):
    with stops_after(11):
        train(tiny, here / "run")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    found = train(tiny, here / "run", resume=True).folder
    assert [record["epoch"] for record in read_record(found).metrics] == [1, 2, 3, 4]
    board = EventAccumulator(str(found.path)).Reload()
    assert [event.step for event in board.Scalars("loss/train")] == [5, 10, 15, 20]
    assert read_record(found).result["train_seconds"] > 0
