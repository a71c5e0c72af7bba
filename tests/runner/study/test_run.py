"""Trials in worker processes: one that dies, hangs or cannot write harms no other trial."""

import contextlib
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
import torch

from tests.patience import HANG
from vitcli.runner.engines import drive
from vitcli.runner.engines import local as engine
from vitcli.runner.engines.engine import MAX_ATTEMPTS
from vitcli.runner.engines.local import Worker
from vitcli.runner.engines.plan_file import read_plan
from vitcli.runner.errors import InputError, PartlyError, ResourceError, StoppedError
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.files import commit_json
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.study import run as study_run
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study
from vitcli.runner.study.states import trial_states
from vitcli.runner.train import signals
from vitcli.runner.train.events import Ended, Message, Started, Stopping
from vitcli.runner.train.start import Request, start

ROOT = Path("runs/mine")
VARIANTS = "{full: {}, no-norm: {model.norm: none}, hot: {optim.lr: 90.0, optim.name: sgd,\
 optim.max_grad_norm: null, model.norm: none, model.pool: cls}}"


def write_study(base: object) -> str:
    Path("mine.yaml").write_text(f"base: {base}\nseeds: [0, 1]\nvariants: {VARIANTS}\n")
    return "mine.yaml"


@pytest.fixture
def study(workshop, here) -> str:
    """Return a study of three variants and two seeds.

    One variant diverges. A trial takes about a second.
    """
    return write_study(workshop / "tiny.yaml")


@pytest.fixture
def own_study(tiny) -> str:
    """Return the same study on pictures that a test may change."""
    return write_study("tiny.yaml")


@pytest.fixture
def calm(study, workshop) -> dict[str, tuple[str, str]]:
    """Put the trained variant ``full`` into the study and return its states.

    It is trained once per worker process.
    """
    shared = workshop / "full"
    if not (shared / "seed1/result.json").exists():
        run(study, only=("full",))
        shutil.copytree(ROOT / "full", shared)
        shutil.rmtree(ROOT)
    shutil.copytree(shared, ROOT / "full")
    return pairs(trial_states(load_study(study), ROOT, ("full",)))


def run(name: str, events: list | None = None, *, seeds=None, only=(), **changes: Any):
    events = [] if events is None else events
    plan = plan_study(load_study(name, seeds), ROOT, only, rerun=changes.pop("rerun", ()))
    fixed: dict[str, Any] = {"jobs": 1, "command": "vitcli ablate mine", "device": "cpu"}
    return run_study(plan, Options(**fixed | changes), events.append)


def pairs(found) -> dict[str, tuple[str, str]]:
    """Return the state and reason of each trial."""
    return {folder: (state.state, state.reason) for folder, state in found.items()}


def end_states(events) -> dict[str, str]:
    return {e.folder: e.event.state for e in events if isinstance(e.event, Ended)}


def times() -> dict[Path, int]:
    """Return when each file of the study changed."""
    files = (path for path in ROOT.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


def test_every_trial_is_trained_once_and_the_plan_is_written_first(study):
    events: list = []
    found = run(study, events, jobs=2)
    states = {folder: state.state for folder, state in found.items()}
    assert states == {
        f"{variant}/seed{seed}": state
        for variant, state in (("full", "finished"), ("no-norm", "finished"), ("hot", "diverged"))
        for seed in (0, 1)
    }
    assert end_states(events) == states
    written = read_plan(ROOT)
    assert written["trials"].keys() == states.keys()
    meta = RunDir(ROOT / "full/seed0").read("meta.json")
    assert (meta["threads"], meta["variant"], meta["command"]) == (1, "full", "vitcli ablate mine")
    # The second call trains nothing and changes no file, except that its cache may know more.
    before, events[:] = times(), []
    assert run(study, events) == found
    assert events == []
    assert before == times()
    check_that_only_weights_are_left()


def test_the_next_call_reduces_full_checkpoints_to_weights(study):
    spec = load_study(study).trials(("full",))[0].spec
    folder = ROOT / "full/seed0"
    experiment = Experiment("mine", spec, Path(study), variant="full")
    limited = torch.get_num_threads()
    torch.set_num_threads(1)
    start(experiment, Request(output=folder))
    torch.set_num_threads(limited)
    assert len(steps(RunDir(folder).checkpoints)) == 2
    found = run(study, only=("full",), seeds=[0])
    assert pairs(found) == {"full/seed0": ("finished", "")}
    assert [path.name for path in folder.rglob("*.safetensors")] == ["weights.safetensors"]


def check_that_only_weights_are_left():
    run = RunDir(ROOT / "no-norm/seed1")
    (step,) = steps(run.checkpoints)
    assert step == 20
    names = load_checkpoint(run.checkpoints / str(step)).tensors
    assert names
    assert {name.partition(".")[0] for name in names} == {"ema"}
    assert [path.name for path in run.checkpoints.rglob("*.safetensors")] == ["weights.safetensors"]
    load_model(run)
    accuracy = evaluate_run(str(run.path)).scores.accuracy
    assert accuracy == run.read("result.json")["test_accuracy"]


def kill_trial(
    monkeypatch, folder: str, times: int = MAX_ATTEMPTS, number: int = signal.SIGKILL
) -> None:
    """Send a signal to the worker that trains this trial, the first few times."""
    original = Worker.send

    def send(self, job):
        original(self, job)
        if job.folder == folder and job.attempt <= times:
            run = RunDir(ROOT / folder)
            while not run.metrics() and self.process.poll() is None:
                time.sleep(0.01)
            os.kill(self.process.pid, number)

    monkeypatch.setattr(Worker, "send", send)


def test_a_killed_trial_continues_to_the_same_result_and_other_trials_finish(
    study, calm, monkeypatch
):
    result = read_results(load_study(study), ROOT, ("full",))
    assert result.inexact == ()
    ROOT.rename("calm")
    with monkeypatch.context() as patched:
        kill_trial(patched, "full/seed0")
        events: list = []
        found = run(study, events, only=("full",), jobs=2)
    state, reason = pairs(found)["full/seed0"]
    assert state == "failed"
    assert "SIGKILL" in reason
    assert pairs(found)["full/seed1"] == ("finished", "")
    events.clear()
    assert pairs(run(study, events, only=("full",), jobs=1)) == calm
    assert end_states(events) == {"full/seed0": "finished"}, (
        "only the failed trial is trained again"
    )
    again = read_results(load_study(study), ROOT, ("full",))
    assert timeless(again) == timeless(result)
    meta = RunDir(ROOT / "full/seed1").read("meta.json")
    commit_json(ROOT / "full/seed1/meta.json", meta | {"inexact": ["from step 5: threads 1 -> 2"]})
    assert read_results(load_study(study), ROOT, ("full",)).inexact == ("full/seed1",)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.ci)]
)
def test_a_trial_killed_or_hung_once_continues_in_another_process(study, calm, monkeypatch, number):
    result = read_results(load_study(study), ROOT, ("full",))
    ROOT.rename("calm")
    kill_trial(monkeypatch, "full/seed0", times=1, number=number)
    if number == signal.SIGSTOP:  # shorter than the default hour, longer than any pause of a trial
        monkeypatch.setattr(engine, "EVENT_TIMEOUT", 30.0)
    events: list = []
    assert pairs(run(study, events, only=("full",), jobs=1)) == calm
    assert timeless(read_results(load_study(study), ROOT, ("full",))) == timeless(result)
    texts = [e.event.text for e in events if isinstance(e.event, Message)]
    why = "killed by SIGKILL" if number == signal.SIGKILL else "hung and was killed"
    assert [text for text in texts if why in text and "continues from its checkpoint" in text]


def test_a_process_that_does_not_end_does_not_delay_the_study(study, monkeypatch):
    original = Worker.close_input

    def close_input(self):
        original(self)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)

    monkeypatch.setattr(Worker, "close_input", close_input)
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.5)
    assert set(pairs(run(study, only=("full",), jobs=1)).values()) == {("finished", "")}


def timeless(doc) -> dict:
    rows = doc.model_dump(mode="json")["rows"]
    for row in rows:
        for trial in row["trials"]:
            del trial["train_seconds"], trial["images_per_second"]
    return rows


class SignalAfter(signals.StopFlag):
    """Reports SIGINT as soon as a trial has written metrics."""

    @property
    def number(self):
        return signal.SIGINT if list(ROOT.glob("*/*/metrics.jsonl")) else None

    @number.setter
    def number(self, _):
        pass


def test_a_stopped_study_saves_and_can_be_continued(study, monkeypatch):
    events: list = []
    with monkeypatch.context() as patched:
        patched.setattr(drive, "StopFlag", SignalAfter)
        with pytest.raises(StoppedError, match=r"Continue: vitcli ablate mine") as caught:
            run(study, events, only=("full",), jobs=1)
    assert caught.value.exit_code == 130
    assert Stopping() in [e.event for e in events]
    found = trial_states(load_study(study), ROOT, ("full",))
    states = [state.state for state in found.values()]
    assert "missing" in states, "waiting trials are not started"
    found = run(study, only=("full",))
    assert set(pairs(found).values()) == {("finished", "")}


def test_the_budget_ends_a_study_as_partly_done(study):
    with pytest.raises(PartlyError, match="budget is used up") as caught:
        run(study, budget=0.01)
    assert caught.value.exit_code == 3


def test_a_stale_trial_is_renamed_and_trained_again(study, calm):
    path = ROOT / "full/seed0/config.yaml"
    edited = path.read_text().replace("depth: 2", "depth: 3")
    path.write_text(edited)
    events: list = []
    found = run(study, events, only=("full",), seeds=[0])
    assert pairs(found) == {"full/seed0": ("finished", "")}
    assert (ROOT / "full/seed0.stale1/config.yaml").read_text() == edited
    messages = [e.event.text for e in events if isinstance(e.event, Message)]
    assert "stale, kept as seed0.stale1: model.depth is 3 in its folder, 2 in the study" in messages
    events.clear()
    run(study, events, only=("full",), seeds=[0], rerun=("full",))
    assert end_states(events) == {"full/seed0": "finished"}, "--rerun trains finished trials, too"


@pytest.mark.ci
def test_a_stopped_rerun_continues_from_its_checkpoint(study, calm, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(drive, "StopFlag", SignalAfter)
        with pytest.raises(StoppedError, match=r"[01] of 2 trials done"):
            run(study, only=("full",), jobs=1, rerun=("full",))
    after = plan_study(load_study(study), ROOT, ("full",))
    assert after.trials, "deleted results no longer count"
    assert pairs(run(study, only=("full",))) == calm


def test_a_rerun_whose_workers_are_killed_shows_no_old_results(study, calm, monkeypatch):
    monkeypatch.setattr(engine, "MAX_ATTEMPTS", 1)
    kill_trial(monkeypatch, "full/seed0")
    found = run(study, only=("full",), seeds=[0], rerun=("full",))
    assert found["full/seed0"].state == "failed"


def test_a_rerun_trains_only_the_named_variants(study, calm):
    run(study, only=("full", "no-norm"), seeds=[0])
    plan = plan_study(load_study(study, [0]), ROOT, ("full", "no-norm"), rerun=("no-norm",))
    assert [trial.folder for trial in plan.trials] == ["no-norm/seed0"]


@pytest.mark.ci
def test_images_unlike_those_of_finished_trials_are_refused_before_training(own_study, here):
    study = own_study
    run(study, only=("full",), seeds=[0])
    for path in (here / "pictures" / "train").rglob("0.png"):
        path.unlink()
    events: list = []
    with pytest.raises(InputError, match="finished trials were trained on other images"):
        run(study, events, only=("full",))
    assert not [e for e in events if isinstance(e.event, Started)]


def test_a_worker_that_loses_its_driver_at_once_trains_nothing(study, environment):
    plan = plan_study(load_study(study), ROOT, ("full",))
    ROOT.mkdir(parents=True)
    study_run.write_plan(plan, Options(jobs=1, command="x", device="cpu"))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "vitcli.runner.engines.worker", str(ROOT)],
            input=json.dumps({"folder": "full/seed0"}) + "\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode in (0, -signal.SIGTERM), done.stderr
        run = RunDir(ROOT / "full/seed0")
        assert not run.exists or run.status()["state"] in ("interrupted", "running")


def test_missing_images_give_one_error_and_not_one_per_trial(own_study, here):
    loaded = plan_study(load_study(own_study), ROOT, ())
    shutil.rmtree(here / "pictures")
    events: list = []
    with pytest.raises(InputError, match="pictures"):
        run_study(loaded, Options(jobs=2, command="x"), events.append)
    assert end_states(events) == {}


def test_too_little_disk_space_is_refused_before_training(study, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(study_run.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="GB of disk space"):
        run(study)
    assert not list(ROOT.glob("*/seed*"))


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a process need Linux")
def test_a_full_disk_fails_one_trial_only(study, monkeypatch):
    original = Worker.send

    def send(self, job):
        room = 10_000 if job.folder == "full/seed0" else resource.RLIM_INFINITY
        limits = (room, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)
        original(self, job)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "send", send)
        found = run(study, only=("full",), jobs=1)
    state, reason = pairs(found)["full/seed0"]
    assert state == "failed"
    assert reason.startswith("disk full while writing")
    assert pairs(found)["full/seed1"] == ("finished", ""), "by the same worker"
    assert set(pairs(run(study, only=("full",))).values()) == {("finished", "")}


def test_fail_fast_starts_no_further_trial(study, monkeypatch):
    monkeypatch.setattr(engine, "MAX_ATTEMPTS", 1)
    kill_trial(monkeypatch, "full/seed0")
    events: list = []
    found = run(study, events, jobs=1, fail_fast=True)
    assert end_states(events) == {"full/seed0": "failed"}
    assert {state.state for state in found.values()} == {"failed", "missing"}


def test_two_jobs_train_in_two_processes(study):
    events: list = []
    run(study, events, only=("full",), jobs=2)
    begun = [found.folder for found in events if isinstance(found.event, Started)]
    assert sorted(begun) == ["full/seed0", "full/seed1"]
    assert len(list((ROOT / "logs").glob("worker*.log"))) == 2
