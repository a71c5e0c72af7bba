"""The worker processes of this machine, and the trials of other drivers."""

import os
import queue
import signal
from typing import Any

import pytest

from tests.patience import HANG
from tests.runner.study.trials import ROOT, fabricate, write_study
from vitcli.runner.engines import local as engine
from vitcli.runner.engines.local import LocalEngine, Setup, Worker
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import write_plan
from vitcli.runner.train.events import Ended, Event
from vitcli.runner.train.signals import StopFlag

FAKE = """
import json, os, signal, sys, time
from pathlib import Path
from vitcli.runner.train.events import Ended, Started, TrialEvent, to_line
root = Path(sys.argv[-1])
for line in sys.stdin:
    folder = json.loads(line)["folder"]
    started = dict.fromkeys(("parameters", "num_train", "num_test", "epochs", "steps_per_epoch"), 1)
    names = dict.fromkeys(
        ("folder", "task", "headline", "data", "device", "precision", "kernels"), ""
    )
    event = Started(**names, **started, first_step=0)
    print(to_line(TrialEvent(folder, event)), end="", flush=True)
    with (root / folder).open("a") as file:
        file.write(os.environ["VITCLI_WORKER_CORES"] + ";")
    if folder == "killed" and (root / folder).read_text().count(";") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 60
    while not all((root / name).exists() for name in ("calm", "killed")):
        assert time.monotonic() < until
        time.sleep(0.01)
    print(to_line(TrialEvent(folder, Ended(state="finished"))), end="", flush=True)
"""
"""A worker that notes its cores in a file of the trial, and is killed once."""


def test_a_process_that_closed_its_output_but_runs_on_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.2)
    silent = ("-c", "import os, time; os.close(1); time.sleep(600)")
    monkeypatch.setattr(engine, "PROGRAM", silent)
    inbox: queue.Queue = queue.Queue()
    worker = Worker(tmp_path, "worker0", Setup(threads=1), inbox)
    assert inbox.get(timeout=HANG) == (worker, None), "its output has ended"
    assert worker.exit_reason() == "its process hung and was killed"
    assert worker.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("pin", [True, False])
def test_each_worker_has_cores_of_its_own_and_hands_them_to_its_successor(
    tmp_path, monkeypatch, pin
):
    """The machine has four cores; without pinning, a worker uses all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    monkeypatch.setattr(engine, "PROGRAM", ("-c", FAKE))
    workers = LocalEngine(tmp_path, ["killed", "calm"], Setup(count=2, threads=2, pin=pin))
    ends = [e.event for e in workers.events(lambda: None) if isinstance(e.event, Ended)]
    assert [end.state for end in ends] == ["finished", "finished"]
    found = {name: (tmp_path / name).read_text().split(";")[:-1] for name in ("killed", "calm")}
    (first, second), (calm,) = found["killed"], found["calm"]
    assert first == second
    assert {first, calm} == ({"0,1", "2,3"} if pin else {""})


def test_a_trial_killed_at_its_last_attempt_has_failed_and_others_finish(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "MAX_ATTEMPTS", 1)
    monkeypatch.setattr(engine, "PROGRAM", ("-c", FAKE))
    workers = LocalEngine(tmp_path, ["killed", "calm"], Setup(count=2, threads=1))
    found = {e.folder: e.event for e in workers.events(lambda: None) if isinstance(e.event, Ended)}
    assert (found["killed"].state, found["calm"].state) == ("failed", "finished")
    assert "SIGKILL" in found["killed"].reason


ANSWERING = """
import json, os, sys, time
from vitcli.runner.train.events import Ended, TrialEvent, to_line
for line in sys.stdin:
    folder = json.loads(line)["folder"]
    print(to_line(TrialEvent(folder, %s)), end="", flush=True)
"""
"""A worker that ends each trial at once, with an event."""


def test_after_a_failed_gpu_another_process_takes_the_next_trial(tmp_path, monkeypatch):
    failing = ANSWERING % 'Ended(state="failed", reason=str(os.getpid()), exit=int(folder))'
    monkeypatch.setattr(engine, "PROGRAM", ("-c", failing))
    jobs = ["4", "5", "1", "4"]
    workers = LocalEngine(tmp_path, jobs, Setup(count=1, threads=1))
    events = [found.event for found in workers.events(lambda: None)]
    first, second, third, fourth = [event.reason for event in events if isinstance(event, Ended)]
    assert first == second, "the data of one trial were bad"
    assert len({second, third, fourth}) == 3


def test_a_process_that_does_not_end_does_not_delay_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.2)
    lingering = ANSWERING % 'Ended(state="finished")' + "time.sleep(600)"
    monkeypatch.setattr(engine, "PROGRAM", ("-c", lingering))
    workers = LocalEngine(tmp_path, ["a"], Setup(count=1, threads=1))
    assert [found.event.state for found in workers.events(lambda: None)] == ["finished"]


@pytest.fixture
def planned(here) -> RunDir:
    """The first trial of a study that is planned; another driver found that it diverged."""
    study, run = write_study(), fabricate("full", 0, state="diverged")
    write_plan(plan_study(study, ROOT, ()), Options(device="cpu", command="vitcli ablate mine"))
    return run


def end(**options: Any) -> Ended:
    """Let a worker train the trial; return how it ends."""
    events: list[Event] = []
    run_trial(ROOT, "full/seed0", send=events.append, load=SharedData(), **options)
    (found,) = [event for event in events if isinstance(event, Ended)]
    return found


def test_a_trial_that_diverged_under_another_driver_is_not_trained_again(planned):
    planned.set_status("diverged", 300, "loss is not finite")
    assert end() == Ended(state="diverged", reason="loss is not finite")
    commit_json(planned.path / "meta.json", {"config_hash": "of another trial"})
    found = end(request={"device": "abacus"})
    assert found.state == "failed", "its folder belongs to another configuration"


def test_a_driver_replaces_fields_of_the_plan_for_its_own_trials(planned):
    planned.set_status("interrupted", 300)
    assert "abacus" in end(request={"device": "abacus"}).reason


def test_a_trial_that_another_process_trains_is_left_to_it(planned):
    planned.set_status("running", 300)
    with planned.lock():
        found = end()
    assert (found.state, found.exit) == ("failed", 7)


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_worker_ignores_the_second_of_two_signals(monkeypatch, is_patient):
    """A scheduler signals every process of a job, and the driver in the job signals its worker."""
    monkeypatch.setattr(StopFlag, "is_patient", is_patient)
    seen: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.number == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)
            assert bool(seen) is not is_patient
    finally:
        signal.signal(signal.SIGTERM, previous)
