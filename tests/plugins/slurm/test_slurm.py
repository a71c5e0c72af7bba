"""`ablate --engine slurm`: jobs of Slurm train one study, though each is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import typed
from tests.patience import HANG
from tests.runner.engines.kills import (
    FAR,
    check_that_both_have_the_same_trials,
    kill_each_once,
    train_calmly,
)
from tests.runner.engines.studies import ablate
from tests.runner.study.trials import STUDY

JOB = {"SLURM_ARRAY_JOB_ID": "7"}


@pytest.fixture
def scontrol(here) -> str:
    program = here / "bin/scontrol"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@" >> queued\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_a_job_whose_time_is_up_ends_its_driver_and_is_queued_again(here, scontrol, monkeypatch):
    Path("mine.yaml").write_text(STUDY)
    # exit() would be ignored where the signal comes while a file is closed.
    leave = "lambda *_: open('saved', 'w') and os._exit(143)"
    slow = f"import os, signal, time; signal.signal(15, {leave})"
    words = ["-c", f"{slow}; open('begun', 'w'); time.sleep({HANG})"]
    monkeypatch.setattr(
        "vitcli.plugins.slurm.script.python_command", lambda *_: [sys.executable, *words]
    )
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


@pytest.mark.slow
def test_two_jobs_of_slurm_each_killed_once_end_with_the_trials_of_one(tiny, environment):
    """Without Slurm: a shell runs each job of the array, and runs it again after the kill."""
    train_calmly(environment)
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
