"""One training on several processes: what rank 0 sends, agreement, and ranks that are lost."""

import json
import os
import signal
import socket
import threading

import pytest
import torch.distributed as dist

from tests import torchrun
from tests.same_run import assert_same_run
from tests.task_table import TinyTask
from vitcli.core.ranks import LostRankError
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.machine.launch import VARIABLES, Launch, read_launch
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train import ranks as module
from vitcli.runner.train.ranks import EndedError, TorchrunProcesses, refuse_parts

TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
STARTED = dict.fromkeys(VARIABLES, "1") | TWO
DEAD = 2**22 + 1
"""The number of no process: Linux has at most 2^22."""


def processes(rank: int, store: dist.Store, size: int = 2) -> TorchrunProcesses:
    return TorchrunProcesses(Launch(rank, size, rank, size), store)


@pytest.fixture
def tiny_run(tmp_path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create(ExperimentSpec())
    run.set_status("running", 0)
    return run


def test_torchrun_says_which_rank_a_process_is():
    assert read_launch(STARTED) == Launch(1, 2, 1, 2)
    assert read_launch(STARTED | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    for name in VARIABLES:
        assert read_launch({k: v for k, v in STARTED.items() if k != name}) is None


def test_each_rank_has_a_gpu_of_its_own(monkeypatch):
    ranks = processes(1, dist.HashStore())
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    assert ranks.device_name("auto") == "auto"
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 2)
    for name, device in (("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")):
        assert ranks.device_name(name) == device
    with pytest.raises(ConfigError, match="--device cuda:0"):
        ranks.device_name("cuda:0")
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ResourceError, match="rank 1 needs a GPU of its own"):
        ranks.device_name("auto")


def test_a_batch_must_be_divisible_among_the_ranks():
    spec = ExperimentSpec(train=TrainSpec(batch_size=100, accumulate=2))
    refuse_parts(spec, 2)
    with pytest.raises(ConfigError, match=r"100 images .* 3 ranks x 2 parts; type .*batch_size=96"):
        refuse_parts(spec, 3)


def test_ranks_that_compute_otherwise_are_refused():
    store = dist.HashStore()
    zero, one = processes(0, store), processes(1, store)
    one._set("facts/0/1", {"torch": "2.11", "threads": 1})
    with pytest.raises(ConfigError, match=r"rank 1 has torch 2.11, rank 0 has 2.15"):
        zero.compare({"torch": "2.15", "threads": 1})


def test_a_rank_that_waits_ends_when_rank_0_ends():
    store = dist.HashStore()
    zero, one = processes(0, store), processes(1, store)
    threading.Timer(0.2, zero.end, [2]).start()
    with pytest.raises(EndedError) as caught:
        one.receive()
    assert caught.value.exit_code == 2


def lose(run: RunDir, rank: int, store: dist.Store, size: int = 2, error: str = "closed") -> str:
    with pytest.raises(ResourceError) as caught, processes(rank, store, size).watch(run, "GO ON"):
        raise LostRankError(error)
    return str(caught.value)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_is_named_by_the_other(tiny_run, lost):
    store = dist.HashStore()
    who = {"host": socket.gethostname(), "pid": DEAD}
    store.set(f"who/{lost}", json.dumps(who))
    found = lose(tiny_run, 1 - lost, store)
    reason = f"rank {lost} was killed or its machine was lost (process {DEAD} on {who['host']})"
    assert found == f"{tiny_run.path}: {reason}. Continue: GO ON"
    record = read_record(tiny_run)
    assert (record.status, record.step, record.reason) == ("failed", 0, reason)


def test_a_rank_that_hangs_is_named(tiny_run, monkeypatch):
    monkeypatch.setattr(module, "NOTE_SECONDS", 0.1)
    monkeypatch.setenv(module.TIMEOUT_VARIABLE, "7")
    store = dist.HashStore()
    processes(1, store)
    assert f"rank 1 did not answer for 7 s (process {os.getpid()} on" in lose(tiny_run, 0, store)


def test_a_rank_that_failed_says_why(tiny_run):
    store = dist.HashStore()
    processes(1, store).leave("OutOfMemoryError: 3 GiB")
    assert "rank 1 failed: OutOfMemoryError: 3 GiB. Continue" in lose(tiny_run, 0, store)


def test_a_state_that_rank_0_has_written_stays(tiny_run):
    store = dist.HashStore()
    store.set("who/0", json.dumps({"host": socket.gethostname(), "pid": DEAD}))
    tiny_run.set_result({"train_seconds": 1.0})
    for state in ("finished", "interrupted", "diverged"):
        tiny_run.set_status(state, 3, "as it was")
        lose(tiny_run, 1, store)
        record = read_record(tiny_run)
        assert (record.status, record.step, record.reason) == (state, 3, "as it was")


def test_a_rank_ends_quietly_if_rank_0_has_ended(tiny_run):
    store = dist.HashStore()
    zero, one = processes(0, store), processes(1, store)
    zero.end(8)
    zero.leave("")
    with pytest.raises(EndedError) as caught, one.watch(tiny_run, ""):
        raise LostRankError("closed")
    assert caught.value.exit_code == 8
    assert read_record(tiny_run).status == "running"


@pytest.fixture
def places(here, tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / "rank-tasks"
    place.mkdir(exist_ok=True)
    return place


def assert_close(one: dict, other: dict, without: tuple[str, ...]) -> None:
    assert one.keys() == other.keys()
    for key in one.keys() - {*without}:
        is_number = isinstance(one[key], float)
        wanted = pytest.approx(one[key], rel=1e-5, abs=1e-5) if is_number else one[key]
        assert other[key] == wanted, key


@pytest.mark.ci
def test_two_ranks_give_the_numbers_of_one_process(places):
    task = TinyTask("classify", places)
    changes = {"train.precision": "fp32", "model.proj_drop": 0.0, "model.drop_path": 0.0}
    one = task.train("runs/one", changes)
    words = [word for field, value in changes.items() for word in ("-s", f"{field}={value}")]
    said = torchrun.run("train", str(task.path), *words, "-o", "runs/two")
    two = RunDir(one.path.parent / "two")
    assert said.count("epoch   1") == 1
    for mine, other in zip(read_record(one).metrics, read_record(two).metrics, strict=True):
        assert_close(mine, other, without=("images_per_second",))
    assert read_record(two).status == "finished"
    assert read_record(two).meta["ranks"] == 2
    results = (read_record(each).result for each in (one, two))
    assert_close(*results, without=("images_per_second", "train_seconds", "sha256"))


LONG = ("--epochs", "40")


@pytest.fixture
def calm(places) -> RunDir:
    task = TinyTask("classify", places)
    run = places / "calm"
    if not (run / "result.json").exists():
        torchrun.run("train", str(task.path), "-o", str(run), *LONG)
    return RunDir(run)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_stop_together_and_resume_to_the_same_bits(calm, places, rank, number):
    run = RunDir(places / f"stopped-{rank}-{number}")
    process = torchrun.start("train", str(places / "classify.yaml"), "-o", str(run.path), *LONG)
    torchrun.wait_for_checkpoint(process, run.path)
    os.kill(torchrun.rank_processes(process.pid)[rank], number)
    said = process.communicate(timeout=torchrun.HANG)[0]
    stored = read_record(run)
    assert process.returncode == 1, "torchrun's code for everything"
    if number == signal.SIGKILL:
        assert stored.status == "failed"
        assert stored.reason.startswith(f"rank {rank} was killed or its machine was lost")
    else:
        assert (stored.status, stored.reason) == ("interrupted", "signal 15")
        assert "a checkpoint was saved" in said
    resume = f"torchrun --nproc-per-node 2 -m vitcli train --resume {run.path}"
    assert resume in said
    assert stored.step == run.last_step() > 0
    torchrun.run("train", "--resume", str(run.path))
    assert_same_run(calm, run)
