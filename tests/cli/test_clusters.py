"""`ablate --engine`: drivers on Ray and in jobs of Slurm train one study, though each is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import typed
from tests.patience import HANG
from tests.runner.engines.studies import ablate, table_of, wait_for, write_study
from tests.runner.study.trials import STUDY, fabricate
from tests.same_run import assert_same_run
from vitcli.cli.clusters import drive, room, shared_words
from vitcli.runner.errors import ResourceError
from vitcli.runner.run.folder import RunDir

CALM, FAR = Path("calm"), Path("far")
JOB = {"SLURM_ARRAY_JOB_ID": "7"}
needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="needs pip install ray")


@pytest.fixture
def scontrol(here) -> str:
    program = here / "bin/scontrol"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@" >> queued\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_a_driver_has_the_words_of_the_command_without_those_of_its_engine():
    words = "ablate mine.yaml --engine ray -j 4 --gpus=0.5 -s a.b=1 -o far --seeds 0-7 -ofar -j2"
    assert " ".join(shared_words(words.split())) == "ablate mine.yaml -s a.b=1 --seeds 0-7"


@pytest.mark.parametrize(
    ("cores", "gpus", "count"), [(1, 0.0, 6), (2, 0.0, 3), (1, 0.25, 4), (1, 1.0, 1), (1, 2.0, 0)]
)
def test_a_driver_fits_on_a_machine_with_all_its_cores_and_gpus(cores, gpus, count):
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 2.0}]
    if count:
        assert room(nodes, cores, gpus) == count
    else:
        with pytest.raises(ResourceError):
            room(nodes, cores, gpus)


def test_a_machine_without_the_folder_of_the_study_trains_nothing(here):
    (here / "logs").mkdir()
    assert "does not see" in drive(["--version"], str(here), "logs/ray0.txt")


def test_a_finished_study_needs_no_cluster(here, monkeypatch):
    monkeypatch.setattr("vitcli.cli.engines.find_spec", lambda _: True)  # ray is installed
    Path("mine.yaml").write_text(STUDY)
    for variant in ("full", "no-norm"):
        for seed in (0, 1):
            fabricate(variant, seed)
    assert "no-norm" in typed("ablate mine.yaml --engine ray -j 2")[0]


def test_a_job_whose_time_is_up_ends_its_driver_and_is_queued_again(here, scontrol, monkeypatch):
    Path("mine.yaml").write_text(STUDY)
    slow = "import signal, time; signal.signal(15, lambda *_: (open('saved', 'w'), exit(143)))"
    words = ["-c", f"{slow}; open('begun', 'w'); time.sleep({HANG})"]
    monkeypatch.setattr("vitcli.cli.clusters.python_command", lambda *_: [sys.executable, *words])
    script, _ = typed("ablate mine.yaml --engine slurm -j 3")
    assert {"#SBATCH --array=1-3", "#SBATCH --cpus-per-task=1"} <= {*script.splitlines()}
    variables = {"PATH": scontrol, **JOB, "SLURM_ARRAY_TASK_ID": "2"}
    job = subprocess.Popen(["sh", "-c", script], env=os.environ | variables)
    while not Path("begun").exists():
        assert job.poll() is None
    # dash may lose a signal that comes just before it waits.
    while "State:\tS" not in Path(f"/proc/{job.pid}/status").read_text():
        assert job.poll() is None
    job.send_signal(signal.SIGUSR1)
    assert job.wait(HANG) == 0
    assert Path("saved").exists()
    assert Path("queued").read_text() == "requeue 7_2\n"


def drivers_here() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
            is_driver = words[0] == "ray::drive" or {"ablate", str(FAR.resolve())} < {*words}
            if is_driver and Path(os.readlink(path / "cwd")) == Path.cwd():
                found.add(int(path.name))
        except OSError:  # the process has ended
            continue
    return found


def check_that_both_have_the_same_trials() -> None:
    calm = [path.relative_to(CALM) for path in CALM.glob("*/seed*")]
    assert len(calm) == 6
    for path in calm:
        assert_same_run(RunDir(CALM / path), RunDir(FAR / path))
        one, other = ((folder / path / "predictions.npz").read_bytes() for folder in (CALM, FAR))
        assert one == other


def kill_each_once(restart: Callable[[], object]) -> None:
    killed: set[int] = set()
    until = time.monotonic() + HANG
    while len(killed) < 2:
        running = drivers_here()
        begun = len(list(FAR.glob("*/*/metrics.jsonl")))
        if len(running) == 2 and begun > len(killed):
            killed.add(victim := min(running - killed))
            os.kill(victim, signal.SIGKILL)
            restart()
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def calm(tiny, environment) -> None:
    write_study(epochs=80, seeds=(0, 1))
    table_of(ablate(environment, CALM, "-j", "1"), CALM)


@pytest.mark.slow
@needs_ray
def test_two_drivers_on_ray_each_killed_once_end_with_the_trials_of_one(calm, environment):
    driver = ablate(environment, FAR, "--engine", "ray", "-j", "2")
    kill_each_once(lambda: None)
    table_of(driver, FAR)
    check_that_both_have_the_same_trials()
    assert not drivers_here()


@pytest.mark.slow
def test_two_jobs_of_slurm_each_killed_once_end_with_the_trials_of_one(calm, environment):
    """Without Slurm: a shell runs each job of the array, and runs it again after the kill."""
    script, _ = ablate(environment, FAR, "--engine", "slurm", "-j", "2").communicate()
    jobs: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        number = str(len(jobs) % 2 + 1)
        variables = environment | JOB | {"SLURM_ARRAY_TASK_ID": number}
        jobs.append(subprocess.Popen(["sh", "-c", script], env=variables))

    start()
    start()
    kill_each_once(start)
    codes = [job.wait(HANG) for job in jobs]
    assert sorted(codes) == [0, 0, 137, 137]
    check_that_both_have_the_same_trials()


@pytest.mark.slow
@needs_ray
def test_ctrl_c_stops_the_drivers_on_ray_after_a_checkpoint(tiny, environment):
    write_study(epochs=400)
    driver = ablate(environment, FAR, "--engine", "ray", "-j", "2")
    wait_for(lambda: len(list(FAR.glob("*/*/metrics.jsonl"))) == 2, driver, FAR)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=HANG)
    assert driver.returncode == 130
    states = [json.loads(path.read_text())["state"] for path in FAR.rglob("status.json")]
    assert states == ["interrupted"] * 2
    assert not drivers_here()
