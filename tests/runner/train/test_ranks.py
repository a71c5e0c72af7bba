"""One training on several processes: torchrun starts them, each trains, and rank 0 writes."""

import os
import signal
from pathlib import Path

import pytest

from tests import torchrun
from tests.same_run import assert_same_run
from tests.task_table import TinyTask
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.launch import VARIABLES, Launch, read_launch
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.train import ranks
from vitcli.runner.train.prepare import Request, prepare
from vitcli.runner.train.ranks import device_of_rank, refuse_parts

STARTED = dict.fromkeys(VARIABLES, "1") | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
LONG = ("--epochs", "40")


def test_torchrun_says_which_rank_a_process_is():
    assert read_launch(STARTED) == Launch(1, 2, 1, 2)
    assert read_launch(STARTED | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    for name in VARIABLES:
        assert read_launch({k: v for k, v in STARTED.items() if k != name}) is None


@pytest.fixture
def rank_1(monkeypatch):
    monkeypatch.setattr(ranks.ranks, "size", lambda: 2)
    monkeypatch.setattr(ranks.ranks, "own_rank", lambda: 1)
    monkeypatch.setattr(ranks, "read_launch", lambda: Launch(1, 2, 1, 2))


def test_each_rank_has_a_gpu_of_its_own(rank_1, monkeypatch):
    monkeypatch.setattr(ranks.torch.cuda, "is_available", lambda: False)
    assert device_of_rank("auto") == "auto"
    monkeypatch.setattr(ranks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ranks.torch.cuda, "device_count", lambda: 2)
    assert [device_of_rank(n) for n in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    with pytest.raises(ConfigError, match="cuda:0"):
        device_of_rank("cuda:0")
    monkeypatch.setattr(ranks.torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ResourceError):
        device_of_rank("auto")


def test_ranks_compare_the_kernels_that_a_compiler_made_on_each_machine(rank_1, tiny, monkeypatch):
    def gather(facts, own):
        facts[:] = [own | {"kernels": "native"}, own]

    monkeypatch.setattr(ranks.dist, "all_gather_object", gather)
    experiment = load_experiment(str(tiny), {"train.kernels": "torch"})
    with pytest.raises(ConfigError, match="rank 0 has kernels native, rank 1 has torch"):
        prepare(experiment, Request(device="cpu"))


def test_a_batch_must_be_divisible_among_the_ranks():
    spec = ExperimentSpec(train=TrainSpec(batch_size=100, accumulate=2))
    refuse_parts(spec, 2)
    with pytest.raises(ConfigError, match=r"-s train.batch_size=96"):
        refuse_parts(spec, 3)


@pytest.fixture
def places(here, tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / "rank-tasks"
    place.mkdir(exist_ok=True)
    return place


EXACT = {"train.precision": "fp32", "model.proj_drop": 0.0, "model.drop_path": 0.0}


@pytest.mark.ci
@pytest.mark.parametrize("name", ["classify", pytest.param("clip", marks=pytest.mark.slow)])
def test_two_ranks_give_the_numbers_of_one_process(places, name):
    """The embeddings of clip are gathered from all ranks."""
    task = TinyTask(name, places)
    one = read_record(task.train("runs/one", EXACT))
    words = [word for field, value in EXACT.items() for word in ("-s", f"{field}={value}")]
    said = torchrun.run("train", str(task.path), *words, "-o", "runs/two")
    two = read_record(RunDir(one.path.parent / "two"))
    assert said.count("epoch   1") == 1
    for mine, other in zip([*one.metrics, one.result], [*two.metrics, two.result], strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"images_per_second", "train_seconds", "sha256"}:
            value = mine[key]
            is_float = isinstance(value, float)
            assert other[key] == (pytest.approx(value, 1e-5, 1e-5) if is_float else value), key
    assert (two.status, two.meta["ranks"]) == ("finished", 2)


@pytest.mark.slow
def test_a_pre_training_on_ranks_comes_before_the_training(places):
    task = TinyTask("classify", places)
    first = "pretrain={task: {name: mae}, train: {epochs: 1, batch_size: 16}}"
    torchrun.run("train", str(task.path), "-s", first, "-o", "runs/next")
    record = read_record(RunDir(Path("runs/next")))
    before = read_record(RunDir(Path("runs", record.meta["pretrained"]["run"])))
    assert record.status == before.status == "finished"


@pytest.fixture
def calm(places, request) -> RunDir:
    task = TinyTask("classify", places)
    run = places / f"calm-{request.param}"
    if not (run / "result.json").exists():
        torchrun.run("train", str(task.path), "-o", str(run), *LONG, ranks=request.param)
    return RunDir(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calm", "rank", "number", "state"),
    [
        (2, None, signal.SIGTERM, "interrupted"),
        (2, 1, signal.SIGTERM, "interrupted"),
        (4, 3, signal.SIGTERM, "interrupted"),
        (2, 0, signal.SIGKILL, "running"),
        (4, 2, signal.SIGKILL, "failed"),
    ],
    indirect=["calm"],
)
def test_ranks_stop_together_and_resume_to_the_same_bits(calm, places, rank, number, state):
    size = read_record(calm).meta["ranks"]
    run = RunDir(places / f"stopped-{size}-{rank}-{number}")
    words = ("train", str(places / "classify.yaml"), "-o", str(run.path), *LONG)
    process = torchrun.start(*words, ranks=size)
    torchrun.wait_for_checkpoint(process, run.path)
    hit = process.pid if rank is None else torchrun.rank_processes(process.pid)[rank]
    os.kill(hit, number)
    said = process.communicate(timeout=torchrun.HANG)[0]
    stored = read_record(run)
    assert process.returncode == 1, "torchrun's code for everything"
    # torchrun's SIGTERM may reach rank 0 before it misses another rank
    assert stored.status == state or (state, stored.status) == ("failed", "interrupted")
    assert stored.step == run.last_step() > 0 or stored.status != "interrupted"
    resume = f"torchrun --nproc-per-node {size} -m vitcli train --resume {run.path}"
    if rank != 0:
        assert said.count(f"error: {run.path}") + said.count("error: stopped") == 1, said
        assert resume in said
    torchrun.run("train", "--resume", str(run.path), ranks=size)
    assert_same_run(calm, run)


@pytest.mark.slow
@pytest.mark.parametrize("calm", [2], indirect=True)
def test_torchrun_starts_a_run_again_that_lost_a_rank(calm, places):
    run = RunDir(places / "again")
    words = ("train", str(places / "classify.yaml"), "-o", str(run.path), "--resume", "auto")
    process = torchrun.start(*words, *LONG, restarts=1)
    torchrun.wait_for_checkpoint(process, run.path)
    os.kill(torchrun.rank_processes(process.pid)[1], signal.SIGKILL)
    process.communicate(timeout=torchrun.HANG)
    assert process.returncode == 0
    assert_same_run(calm, run)


LATE = """
import os
from vitcli.parts import schedule
@schedule
def late(progress):
    if os.environ.get("RANK") == "1" and progress > 0.5:
        raise OSError("a disk of rank 1")
    return 1.0
"""


@pytest.mark.slow
def test_a_rank_says_its_own_error_and_rank_0_what_all_refuse(places):
    path = TinyTask("classify", places).path
    Path("late.py").write_text(LATE)
    words = ("train", str(path), "--code", "late.py", "-s", "optim.schedule=late", "-o", "run")
    said = torchrun.run(*words, code=1)
    assert said.count("error: rank 1: ") == said.count("a disk of rank 1") == 1
    assert read_record(RunDir(Path("run"))).status == "failed"
    said = torchrun.run(*words, code=1)
    assert said.count("error: ") == said.count("--resume run") == 1


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up(places, monkeypatch):
    monkeypatch.setenv(ranks.TIMEOUT_VARIABLE, "10")
    path = TinyTask("classify", places).path
    process = torchrun.start("train", str(path), "-o", "run", *LONG)
    torchrun.wait_for_checkpoint(process, Path("run"))
    os.kill(torchrun.rank_processes(process.pid)[1], signal.SIGSTOP)
    assert "--resume run" in process.communicate(timeout=torchrun.HANG)[0]
    assert read_record(RunDir(Path("run"))).status == "failed"
