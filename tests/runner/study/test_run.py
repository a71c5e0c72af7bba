"""Trials in worker processes: one that dies, stops or cannot write harms no other."""

import contextlib
import json
import os
import queue
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
from vitcli.runner.errors import InputError, InUseError, PartlyError, ResourceError, StoppedError
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.files import commit_json
from vitcli.runner.run.checkpoint import load_checkpoint
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.study import run as study_run
from vitcli.runner.study import workers as engine
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import load_study, read_plan
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study
from vitcli.runner.study.states import trial_states
from vitcli.runner.study.workers import ATTEMPTS, Worker
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
    """Two seeds of three variants, one of which diverges; a second's work each."""
    return write_study(workshop / "tiny.yaml")


@pytest.fixture
def own_study(tiny) -> str:
    """The same, on pictures that may be changed."""
    return write_study("tiny.yaml")


@pytest.fixture
def calm(study, workshop) -> dict[str, tuple[str, str]]:
    """States of the variant ``full``, which is trained here already (once a worker, elsewhere)."""
    shared = workshop / "full"
    if not (shared / "seed1/result.json").exists():
        go(study, only=("full",))
        shutil.copytree(ROOT / "full", shared)
        shutil.rmtree(ROOT)
    shutil.copytree(shared, ROOT / "full")
    return pairs(trial_states(load_study(study), ROOT, ("full",)))


def go(name: str, events: list | None = None, *, seeds=None, only=(), **changes: Any):
    events = [] if events is None else events
    todo = plan_study(load_study(name, seeds), ROOT, only, rerun=changes.pop("rerun", ()))
    fixed: dict[str, Any] = {"jobs": 1, "command": "vitcli ablate mine", "device": "cpu"}
    return run_study(todo, Options(**fixed | changes), events.append)


def pairs(found) -> dict[str, tuple[str, str]]:
    """State and reason of each trial."""
    return {folder: (state.state, state.reason) for folder, state in found.items()}


def ends(events) -> dict[str, str]:
    return {e.folder: e.event.state for e in events if isinstance(e.event, Ended)}


def test_every_trial_is_trained_once_and_the_plan_is_written_first(study):
    events: list = []
    found = go(study, events, jobs=2)
    states = {folder: state.state for folder, state in found.items()}
    assert states == {
        f"{variant}/seed{seed}": state
        for variant, state in (("full", "finished"), ("no-norm", "finished"), ("hot", "diverged"))
        for seed in (0, 1)
    }
    assert ends(events) == states
    plan = read_plan(ROOT)
    assert plan["trials"].keys() == states.keys()
    meta = RunDir(ROOT / "full/seed0").read("meta.json")
    assert (meta["threads"], meta["variant"], meta["command"]) == (1, "full", "vitcli ablate mine")
    # Again: nothing is left to do, and nothing is touched.
    before = {path: path.stat().st_mtime_ns for path in ROOT.rglob("*") if path.is_file()}
    events.clear()
    assert go(study, events) == found
    assert events == []
    assert before == {path: path.stat().st_mtime_ns for path in ROOT.rglob("*") if path.is_file()}
    check_that_only_weights_are_left()


def test_training_state_that_was_left_is_dropped_by_the_next_call(study):
    spec = load_study(study).trials(("full",))[0].spec
    folder = ROOT / "full/seed0"
    experiment = Experiment("mine", spec, Path(study), variant="full")
    limited = torch.get_num_threads()
    torch.set_num_threads(1)
    start(experiment, Request(output=folder))
    torch.set_num_threads(limited)
    assert len(steps(RunDir(folder).checkpoints)) == 2
    found = go(study, only=("full",), seeds=[0])
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


def killing(monkeypatch, folder: str, times: int = ATTEMPTS, number: int = signal.SIGKILL) -> None:
    """The worker that gets this trial is sent a signal a moment later, the first few times."""
    original = Worker.give

    def give(self, job):
        original(self, job)
        if job.folder == folder and job.attempt <= times:
            run = RunDir(ROOT / folder)
            while not run.metrics() and self.process.poll() is None:
                time.sleep(0.01)
            os.kill(self.process.pid, number)

    monkeypatch.setattr(Worker, "give", give)


def test_a_killed_trial_harms_no_other_and_is_continued_to_the_same_result(
    study, calm, monkeypatch
):
    result = read_results(load_study(study), ROOT, ("full",))
    assert result.inexact == ()
    ROOT.rename("calm")
    with monkeypatch.context() as patched:
        killing(patched, "full/seed0")
        events: list = []
        found = go(study, events, only=("full",), jobs=2)
    state, reason = pairs(found)["full/seed0"]
    assert state == "failed"
    assert "SIGKILL" in reason
    assert pairs(found)["full/seed1"] == ("finished", "")
    events.clear()
    assert pairs(go(study, events, only=("full",), jobs=1)) == calm
    assert ends(events) == {"full/seed0": "finished"}, "only what failed is run again"
    again = read_results(load_study(study), ROOT, ("full",))
    assert timeless(again) == timeless(result)
    meta = RunDir(ROOT / "full/seed1").read("meta.json")
    commit_json(ROOT / "full/seed1/meta.json", meta | {"inexact": ["from step 5: threads 1 -> 2"]})
    assert read_results(load_study(study), ROOT, ("full",)).inexact == ("full/seed1",)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.ci)]
)
def test_f47_f51_a_trial_killed_or_hung_once_goes_on_in_another_process(
    study, calm, monkeypatch, number
):
    result = read_results(load_study(study), ROOT, ("full",))
    ROOT.rename("calm")
    killing(monkeypatch, "full/seed0", times=1, number=number)
    if number == signal.SIGSTOP:  # longer than a trial of a second is ever silent, and not an hour
        monkeypatch.setattr(engine, "PATIENCE", 30.0)
    events: list = []
    assert pairs(go(study, events, only=("full",), jobs=1)) == calm
    assert timeless(read_results(load_study(study), ROOT, ("full",))) == timeless(result)
    texts = [e.event.text for e in events if isinstance(e.event, Message)]
    why = "killed by SIGKILL" if number == signal.SIGKILL else "hung and was killed"
    assert [text for text in texts if why in text and "goes on from its checkpoint" in text]


def test_a_process_that_will_not_end_does_not_hold_up_the_study(study, monkeypatch):
    original = Worker.dismiss

    def dismiss(self):
        original(self)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)

    monkeypatch.setattr(Worker, "dismiss", dismiss)
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.5)
    assert set(pairs(go(study, only=("full",), jobs=1)).values()) == {("finished", "")}


def test_a_process_whose_output_has_ended_and_that_has_not_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.2)
    silent = ("-c", "import os, time; os.close(1); time.sleep(600)")
    monkeypatch.setattr(engine, "PROGRAM", silent)
    inbox: queue.Queue = queue.Queue()
    worker = Worker(tmp_path, 0, 1, inbox)
    assert inbox.get(timeout=HANG) == (worker, None), "its output has ended"
    assert worker.exit_reason() == "its process hung and was killed"
    assert worker.process.returncode == -signal.SIGKILL


def timeless(doc) -> dict:
    rows = doc.model_dump(mode="json")["rows"]
    for row in rows:
        for trial in row["trials"]:
            del trial["train_seconds"], trial["images_per_second"]
    return rows


class SignalAfter(signals.StopFlag):
    """Notes SIGINT once a trial has saved something."""

    @property
    def number(self):
        return signal.SIGINT if list(ROOT.glob("*/*/metrics.jsonl")) else None

    @number.setter
    def number(self, _):
        pass


def test_a_stopped_study_saves_and_goes_on(study, monkeypatch):
    events: list = []
    with monkeypatch.context() as patched:
        patched.setattr(study_run, "StopFlag", SignalAfter)
        with pytest.raises(StoppedError, match=r"Continue: vitcli ablate mine") as caught:
            go(study, events, only=("full",), jobs=1)
    assert caught.value.exit_code == 130
    assert Stopping() in [e.event for e in events]
    found = trial_states(load_study(study), ROOT, ("full",))
    states = [state.state for state in found.values()]
    assert "missing" in states, "what was waiting is not started"
    found = go(study, only=("full",))
    assert set(pairs(found).values()) == {("finished", "")}


def test_the_budget_ends_a_study_as_partly_done(study):
    with pytest.raises(PartlyError, match="budget is used up") as caught:
        go(study, budget=0.01)
    assert caught.value.exit_code == 3


def test_a_stale_trial_is_kept_aside_and_trained_anew(study, calm):
    path = ROOT / "full/seed0/config.yaml"
    edited = path.read_text().replace("depth: 2", "depth: 3")
    path.write_text(edited)
    events: list = []
    found = go(study, events, only=("full",), seeds=[0])
    assert pairs(found) == {"full/seed0": ("finished", "")}
    assert (ROOT / "full/seed0.stale1/config.yaml").read_text() == edited
    messages = [e.event.text for e in events if isinstance(e.event, Message)]
    assert "stale, kept as seed0.stale1: model.depth is 3 in its folder, 2 in the study" in messages
    events.clear()
    go(study, events, only=("full",), seeds=[0], rerun=("full",))
    assert ends(events) == {"full/seed0": "finished"}, "--rerun trains what is finished, too"


@pytest.mark.ci
def test_a_rerun_that_is_stopped_goes_on_where_it_was(study, calm, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(study_run, "StopFlag", SignalAfter)
        with pytest.raises(StoppedError, match=r"[01] of 2 trials are done"):
            go(study, only=("full",), jobs=1, rerun=("full",))
    after = plan_study(load_study(study), ROOT, ("full",))
    assert after.trials, "what was thrown away is no result any more"
    assert pairs(go(study, only=("full",))) == calm


def test_a_rerun_whose_workers_are_killed_shows_no_old_results(study, calm, monkeypatch):
    monkeypatch.setattr(engine, "ATTEMPTS", 1)
    killing(monkeypatch, "full/seed0")
    found = go(study, only=("full",), seeds=[0], rerun=("full",))
    assert found["full/seed0"].state == "failed"


def test_a_rerun_takes_only_the_variants_that_are_named(study, calm):
    go(study, only=("full", "no-norm"), seeds=[0])
    todo = plan_study(load_study(study, [0]), ROOT, ("full", "no-norm"), rerun=("no-norm",))
    assert [trial.folder for trial in todo.trials] == ["no-norm/seed0"]


@pytest.mark.ci
def test_other_images_than_those_of_finished_trials_are_refused_before_training(own_study, here):
    study = own_study
    go(study, only=("full",), seeds=[0])
    for path in (here / "pictures" / "train").rglob("0.png"):
        path.unlink()
    events: list = []
    with pytest.raises(InputError, match="finished trials were trained on other images"):
        go(study, events, only=("full",))
    assert not [e for e in events if isinstance(e.event, Started)]


def test_f50_a_worker_that_loses_its_driver_at_once_trains_nothing(study, environment):
    todo = plan_study(load_study(study), ROOT, ("full",))
    ROOT.mkdir(parents=True)
    study_run.write_plan(todo, Options(jobs=1, command="x", device="cpu"))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "vitcli.runner.study.worker", str(ROOT)],
            input=json.dumps({"folder": "full/seed0"}) + "\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode in (0, -signal.SIGTERM), done.stderr
        run = RunDir(ROOT / "full/seed0")
        assert not run.exists or run.status()["state"] in ("interrupted", "running")


def test_missing_images_are_one_error_and_not_one_a_trial(own_study, here):
    loaded = plan_study(load_study(own_study), ROOT, ())
    shutil.rmtree(here / "pictures")
    events: list = []
    with pytest.raises(InputError, match="pictures"):
        run_study(loaded, Options(jobs=2, command="x"), events.append)
    assert ends(events) == {}


def test_a_second_process_is_refused(study):
    import filelock

    ROOT.mkdir(parents=True)
    with filelock.FileLock(ROOT / ".lock"), pytest.raises(InUseError):
        go(study)


def test_f24_too_little_room_is_said_before_training(study, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(study_run.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="GB are needed"):
        go(study)
    assert not list(ROOT.glob("*/seed*"))


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a process need Linux")
def test_f21_a_full_disk_costs_one_trial(study, monkeypatch):
    original = Worker.give

    def give(self, job):
        room = 10_000 if job.folder == "full/seed0" else resource.RLIM_INFINITY
        limits = (room, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)
        original(self, job)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "give", give)
        found = go(study, only=("full",), jobs=1)
    state, reason = pairs(found)["full/seed0"]
    assert state == "failed"
    assert reason.startswith("disk full while writing")
    assert pairs(found)["full/seed1"] == ("finished", ""), "by the same worker"
    assert set(pairs(go(study, only=("full",))).values()) == {("finished", "")}


def test_fail_fast_starts_nothing_more(study, monkeypatch):
    monkeypatch.setattr(engine, "ATTEMPTS", 1)
    killing(monkeypatch, "full/seed0")
    events: list = []
    found = go(study, events, jobs=1, fail_fast=True)
    assert ends(events) == {"full/seed0": "failed"}
    assert {state.state for state in found.values()} == {"failed", "missing"}
