"""Slurm: job arrays whose jobs are cancelled, queued again and found again by the next driver.

Ray: a study survives a killed worker and a lost machine, with the table of this machine.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runner.engines import slurm_node
from tests.runner.engines.studies import ablate, table_of, talk, wait_for, workers_of, write_study
from vitcli.runner.engines.engine import MAX_ATTEMPTS, Cluster, Job, Setup
from vitcli.runner.engines.node import EVENTS, NodeTrial, Place
from vitcli.runner.engines.remote import Ticket
from vitcli.runner.engines.slurm import FOLDER, SlurmEngine, SlurmTrial
from vitcli.runner.errors import ResourceError
from vitcli.runner.train.events import Ended, Event, TrialEvent, to_line

needs_submitit = pytest.mark.skipif(not find_spec("submitit"), reason="needs pip install submitit")


SBATCH = """#!/bin/sh
cp "$1" scripts/$(ls scripts | wc -l)
test -f refuse && { echo "sbatch: error: invalid partition" >&2; exit 1; }
echo "Submitted batch job $((41 + $(ls scripts | wc -l)))"
"""
SQUEUE = """#!/bin/sh
test -f down && exit 1
cat queue
"""
SCANCEL = """#!/bin/sh
echo "$@" >> cancelled
"""


@pytest.fixture
def programs(here, monkeypatch) -> Path:
    """Slurm's programs, which keep scripts, a queue and what was cancelled in this folder."""
    (here / "bin").mkdir()
    (here / "scripts").mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        path = here / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    for name in ("srun", "scontrol", "sacct"):
        (here / "bin" / name).symlink_to("scancel")
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(SlurmEngine, "poll_seconds", 0.0)
    return here


JOBS = [Job("full/seed0"), Job("full/seed1")]


def make(jobs: list[Job] = JOBS, **cluster: object) -> SlurmEngine:
    setup = Setup(threads=3, cluster=Cluster(engine="slurm", **cluster))  # type: ignore[arg-type]
    return SlurmEngine(Path("study"), jobs, setup)


def tell(folder: str, event: Event) -> None:
    """Write an event as the machine of a trial does."""
    note = json.loads((Path("study") / FOLDER / f"{folder.replace('/', '.')}.json").read_text())
    with (Path("study") / EVENTS.format(note["key"])).open("a") as file:
        file.write(to_line(TrialEvent(folder, event)))


@needs_submitit
def test_the_trials_are_one_array_with_the_options_of_the_command(programs):
    sbatch = {"account": "vision"}
    engine = make(partition="gpu", gpus=2.0, memory=8.0, minutes=120, sbatch=sbatch)
    Path("queue").write_text("42_0\n42_1\n")
    events = engine.events(lambda: None)
    text = next(events).event.text
    assert text.startswith("Slurm job 42: 2 trials; script ")
    script = Path(text.split()[-1]).read_text()
    options = "--partition=gpu --account=vision --time=120 --cpus-per-task=3 --gpus-per-node=2"
    for line in f"--array=0-1%2 {options} --mem=8GB --signal=USR2@90 --requeue".split():
        assert f"#SBATCH {line}\n" in script, line
    tell("full/seed0", Ended(state="finished", score=0.5))
    tell("full/seed1", Ended(state="diverged"))
    assert [found.event.state for found in events] == ["finished", "diverged"]
    assert not list(Path("study", FOLDER).glob("*.json"))
    assert not Path("cancelled").exists()


@needs_submitit
def test_the_next_driver_finds_the_jobs_of_one_that_was_left(programs):
    Path("queue").write_text("42_0\n42_1\n")
    first = make()
    events = first.events(lambda: None)
    next(events)
    first.stop(leave=True)
    events.close()
    assert not Path("cancelled").exists()
    Path("down").touch()  # a Slurm that does not answer has lost no job
    ticks = iter(range(10))

    def tick() -> None:
        if next(ticks) == 3:  # after looks at a Slurm that is down
            for folder in ("full/seed0", "full/seed1"):
                tell(folder, Ended(state="finished", score=0.5))

    events = make().events(tick)
    assert "2 trials submitted earlier" in next(events).event.text
    assert [found.event.state for found in events] == ["finished", "finished"]
    assert len(list(Path("scripts").iterdir())) == 1


@needs_submitit
def test_jobs_that_slurm_lost_are_submitted_again_and_a_stop_cancels_them(programs):
    Path("queue").write_text("")
    engine = make(JOBS[:1])
    texts = [found.event for found in engine.events(lambda: None)]
    assert len(list(Path("scripts").iterdir())) == MAX_ATTEMPTS
    assert texts[-1].state == "failed"
    assert "job 44 ended without a result; see " in texts[-1].reason
    Path("queue").write_text("45\n")
    engine = make(JOBS[:1])
    events = engine.events(lambda: None)
    next(events)
    engine.stop()
    assert Path("cancelled").read_text() == "--state=PENDING 45\n--signal=TERM 45\n"
    Path("queue").write_text("")
    assert [found.event.state for found in events] == ["interrupted"]


@needs_submitit
def test_a_refusal_of_sbatch_is_one_line(programs):
    Path("refuse").touch()
    with pytest.raises(ResourceError, match=r"sbatch refuses the jobs: .*invalid partition"):
        list(make().events(lambda: None))


def test_trials_without_a_job_cancel_nothing(programs):
    """Without numbers, ``scancel --state=PENDING`` takes every waiting job of the user."""
    make().cancel([Ticket(job, "key") for job in JOBS])
    assert not Path("cancelled").exists()


@needs_submitit
def test_a_job_without_progress_is_an_attempt(programs, monkeypatch):
    place = Place(root=str(programs), token="", folder=str(programs))
    (programs / "logs").mkdir()
    trial = NodeTrial(place=place, job=Job("a"), key="key", threads=1, request={})
    job, attempts = SlurmTrial(trial), []
    while again := job.checkpoint():
        job = again.function
        attempts.append(job.trial.job.attempt)
    assert attempts == [2, 3]
    assert "3 jobs ended without a step" in (programs / EVENTS.format("key")).read_text()
    monkeypatch.setattr(NodeTrial, "last_step", lambda self: 5)
    assert SlurmTrial(trial).checkpoint().function.trial.job.attempt == 1


@pytest.fixture
def cluster(environment, tmp_path_factory) -> Iterator[dict[str, str]]:
    """Yield the environment of a process on a machine of a cluster."""
    if reason := slurm_node.why_not():
        pytest.skip(reason)
    with slurm_node.slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield environment | variables


def slurm(environment: dict[str, str], *words: str) -> list[str]:
    """Run a program of Slurm; return the words that it prints."""
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@needs_submitit
@pytest.mark.slow
def test_a_study_finishes_although_a_job_is_cancelled_and_one_queued_again(tiny, cluster):
    write_study(epochs=30)
    calm = table_of(ablate(cluster, Path("calm"), "-j", "1"), Path("calm"))
    output = Path("far")
    words = ["--engine", "slurm", "--time-limit", "30m", "--partition", "main"]
    driver = ablate(cluster, output, *words)
    wait_for(lambda: len(list(output.glob("*/*/metrics.jsonl"))) >= 2, driver, output)
    first, second = sorted(slurm(cluster, "squeue", "-h", "-r", "-t", "R", "-o", "%i"))
    slurm(cluster, "scancel", first)
    slurm(cluster, "scontrol", "requeue", second)
    wait_for(lambda: "it was stopped from outside" in talk(output), driver, output)
    slurm(cluster, "scontrol", "release", second)
    slurm(cluster, "scontrol", "update", f"jobid={second}", "starttime=now")
    assert table_of(driver, output) == calm
    assert len(calm) == 3
    scripts = [path.read_text() for path in output.glob("logs/slurm/*_submission.sh")]
    assert len(scripts) == 2, "one for all trials, one for the cancelled trial"
    assert sum("#SBATCH --array=0-2%" in script for script in scripts) == 1
    assert not list(output.glob("logs/*.events"))
    assert not list(output.glob("logs/slurm/*.json"))


CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
if sys.stdin.readline():
    cluster.remove_node(second, allow_graceful=False)
    print("removed", flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""Prints the address of two machines. A line on stdin removes the second one, its end both."""


@pytest.fixture
def ray_cluster(environment) -> Iterator[subprocess.Popen[str]]:
    """A cluster of two machines with one core each; its first line is the address."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def line(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return cluster.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="needs pip install ray")
def test_a_study_survives_a_killed_worker_and_a_lost_machine(tiny, environment, ray_cluster):
    address = line(ray_cluster)
    write_study(epochs=60)
    calm = table_of(ablate(environment, Path("calm"), "-j", "1"), Path("calm"))
    output = Path("far")
    driver = ablate(environment, output, "--engine", "ray", "--address", address)
    wait_for(lambda: len(list(output.glob("*/*/metrics.jsonl"))) >= 2, driver, output)
    wait_for(lambda: len(workers_of(output)) == 2, driver, output)
    os.kill(min(workers_of(output).values()), signal.SIGKILL)
    wait_for(lambda: "killed by SIGKILL" in talk(output), driver, output)
    wait_for(lambda: len(workers_of(output)) == 2, driver, output)
    assert ray_cluster.stdin is not None
    ray_cluster.stdin.write("remove\n")
    ray_cluster.stdin.flush()
    assert line(ray_cluster) == "removed"
    wait_for(lambda: "its machine or its Ray worker is gone" in talk(output), driver, output)
    assert table_of(driver, output) == calm
    assert len(calm) == 3
    assert not workers_of(output)
    assert not list(output.glob("logs/*.events"))
    words = ["--engine", "ray", "--address", address, "--cpus", "3"]
    refused = ablate(environment, Path("other"), *words)
    refused.communicate()
    assert refused.returncode == 5, "no machine has 3 cores"
