"""Trials in worker processes: one that dies, hangs or cannot write harms no other trial."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.here_engine import HereEngine
from tests.patience import HANG
from tests.runner.study.trials import ROOT, write_study
from tests.same_run import assert_same_run
from vitcli.runner.engines import drive
from vitcli.runner.engines import local as engine
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Worker
from vitcli.runner.errors import InputError, StoppedError
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.folder import METRICS, RunDir, steps
from vitcli.runner.run.record import read_record
from vitcli.runner.study import run as study_run
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study
from vitcli.runner.train.events import Ended, Message, Started, Stopping
from vitcli.runner.train.signals import StopFlag

VARIANTS = """
  full: {}
  hot: {optim: {lr: 90.0, name: sgd, max_grad_norm: null}, model: {norm: none, pool: cls}}
"""
FULL = ("full",)


@pytest.fixture
def study(workshop, here) -> str:
    """Return a study of two variants, of which one diverges, and two seeds."""
    base = workshop / "tiny.yaml"
    return str(write_study(f"base: {base}\nseeds: [0, 1]\nvariants: {VARIANTS}").path)


@pytest.fixture
def calm(study, workshop) -> None:
    """Put the trial ``full/seed0`` into the study; it was trained once without workers."""
    shared = workshop / "full"
    if not (shared / "seed0/result.json").exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drive, "LocalEngine", HereEngine)
            run(study, only=FULL, seeds=[0])
        shutil.copytree(ROOT / "full", shared)
        shutil.rmtree(ROOT)
    shutil.copytree(shared, ROOT / "full")


def run(name: str, events: list | None = None, *, seeds=None, only=(), **changes: Any):
    events = [] if events is None else events
    plan = plan_study(load_study(name, seeds), ROOT, only, rerun=changes.pop("rerun", ()))
    fixed: dict[str, Any] = {"jobs": 1, "command": "vitcli ablate mine", "device": "cpu"}
    return run_study(plan, Options(**fixed | changes), events.append)


def pairs(found) -> dict[str, tuple[str, str]]:
    return {folder: (state.state, state.reason) for folder, state in found.items()}


def times() -> dict[Path, int]:
    files = (path for path in ROOT.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGKILL, 1), pytest.param(signal.SIGSTOP, 2, marks=pytest.mark.ci)]
)
def test_a_trial_killed_or_hung_once_continues_in_another_process(
    study, calm, monkeypatch, number, jobs
):
    """Its study has each result once: the same as without a kill, and a trial that diverged."""
    ROOT.rename("calm")
    original, sent = Worker.send, []

    def send_and_kill(self, folder):
        original(self, folder)
        sent.append(folder)
        is_first = sent.count("full/seed0") == 1
        if folder == "full/seed0" and number == signal.SIGSTOP:
            limit = 10.0 if is_first else HANG  # longer than any pause of a trial
            monkeypatch.setattr(engine, "EVENT_TIMEOUT", limit)
        if folder == "full/seed0" and is_first:
            while not (trial.path / METRICS).exists() and self.process.poll() is None:
                time.sleep(0.01)
            os.kill(self.process.pid, number)

    trial = RunDir(ROOT / "full/seed0")
    monkeypatch.setattr(Worker, "send", send_and_kill)
    events: list = []
    found = run(study, events, seeds=[0], jobs=jobs)
    states = {folder: state.state for folder, state in found.items()}
    assert states == {"full/seed0": "finished", "hot/seed0": "diverged"}
    assert {e.folder: e.event.state for e in events if isinstance(e.event, Ended)} == states
    texts = [e.event.text for e in events if isinstance(e.event, Message)]
    assert [text for text in texts if ("SIGKILL" if number == signal.SIGKILL else "hung") in text]
    assert read_plan(ROOT)["trials"].keys() == states.keys()
    logs = list((ROOT / "logs").glob("worker*.log"))
    assert len(logs) == jobs + 1, "of each worker, and of the successor"
    meta = read_record(trial).meta
    assert (meta["threads"], meta["variant"], meta["command"]) == (1, "full", "vitcli ablate mine")
    before, events[:] = times(), []
    assert run(study, events, seeds=[0]) == found
    assert (events, times()) == ([], before), "the second call trains nothing and changes no file"
    assert_same_run(RunDir(Path("calm/full/seed0")), trial)
    assert steps(trial.checkpoints) == [20]
    names = load_checkpoint(trial.checkpoints / "20").tensors
    assert {name.partition(".")[0] for name in names} == {"ema"}, "only weights are left"
    (left,) = trial.checkpoints.rglob("*.safetensors")
    assert left.name == "weights.safetensors"
    accuracy = evaluate_run(str(trial.path)).scores.accuracy
    assert accuracy == read_record(trial).result["test_accuracy"]


@pytest.mark.parametrize("rerun", [(), pytest.param(FULL, marks=pytest.mark.ci)])
def test_a_stopped_study_saves_and_can_be_continued(study, monkeypatch, request, rerun):
    if rerun:
        request.getfixturevalue("calm")
    events: list = []

    def number(flag: StopFlag) -> int | None:
        """Return SIGINT as soon as a trial has written metrics."""
        return signal.SIGINT if [*ROOT.glob("*/*/metrics.jsonl")] else None

    with monkeypatch.context() as patched:
        patched.setattr(StopFlag, "number", property(number, lambda *_: None), raising=False)
        with pytest.raises(StoppedError, match=r"Continue: vitcli ablate mine") as caught:
            run(study, events, only=FULL, rerun=rerun)
    assert caught.value.exit_code == 130
    assert Stopping() in [e.event for e in events]
    after = plan_study(load_study(study), ROOT, FULL)
    assert after.states["full/seed0"].state != "finished", "deleted results no longer count"
    assert after.states["full/seed1"].state == "missing", "a waiting trial is not started"
    monkeypatch.setattr(drive, "LocalEngine", HereEngine)
    assert {*pairs(run(study, only=FULL)).values()} == {("finished", "")}


@pytest.mark.ci
@pytest.mark.usefixtures("without_workers")
def test_images_unlike_those_of_finished_trials_are_refused_before_training(tiny, here):
    name = str(write_study(f"base: tiny.yaml\nseeds: [0, 1]\nvariants: {VARIANTS}").path)
    run(name, only=FULL, seeds=[0])
    for path in (here / "pictures" / "train").rglob("0.png"):
        path.unlink()
    events: list = []
    with pytest.raises(InputError, match="other images"):
        run(name, events, only=FULL)
    assert not [e for e in events if isinstance(e.event, Started)]


def test_a_worker_that_loses_its_driver_at_once_trains_nothing(study, environment):
    plan = plan_study(load_study(study), ROOT, FULL)
    ROOT.mkdir(parents=True)
    study_run.write_plan(plan, Options(jobs=1, command="x", device="cpu"))
    words = [sys.executable, "-m", "vitcli.runner.engines.worker", str(ROOT)]
    order = json.dumps({"folder": "full/seed0"}) + "\n"
    options = {"env": environment, "capture_output": True, "text": True, "timeout": HANG}
    done = subprocess.run(words, input=order, check=False, **options)
    assert done.returncode in (0, -signal.SIGTERM), done.stderr
    run = RunDir(ROOT / "full/seed0")
    assert not run.exists or read_record(run).status in ("interrupted", "running")


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a process need Linux")
def test_a_full_disk_fails_one_trial_only(study, monkeypatch):
    original = Worker.send

    def send(self, folder):
        room = 10_000 if folder == "full/seed0" else resource.RLIM_INFINITY
        limits = (room, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)
        original(self, folder)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "send", send)
        found = pairs(run(study, only=FULL))
    assert found["full/seed0"][0] == "failed"
    assert "ulimit -f" in found["full/seed0"][1]
    assert found["full/seed1"] == ("finished", ""), "by the same worker"
    monkeypatch.setattr(drive, "LocalEngine", HereEngine)
    assert set(pairs(run(study, only=FULL)).values()) == {("finished", "")}
