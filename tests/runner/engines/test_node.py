"""A machine of a cluster and a worker process: what they refuse and leave alone, their events."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run
from tests.patience import HANG
from vitcli.runner.engines import local, node
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.engines.engine import Job
from vitcli.runner.engines.node import CONTROL, EVENTS, SHARED, STOP, NodeTrial, Place
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.events import Ended, Event, Message, from_line
from vitcli.runner.train.signals import StopFlag

WORKER = """
import json, signal, sys
from vitcli.runner.train.events import Ended, Message, TrialEvent, to_line
job = json.loads(sys.stdin.readline())
tell = lambda event: print(to_line(TrialEvent(job["folder"], event)), end="", flush=True)
def stop(*_):
    tell(Ended(state="interrupted"))
    sys.exit()
signal.signal(signal.SIGTERM, stop)
tell(Message(text=str(job["request"])))
if job["folder"] == "long":
    sys.stdin.read()  # ends with the process that feeds this worker, which thus never outlives it
    stop()
tell(Ended(state="finished"))
"""
"""A worker that tells its request, and trains the trial "long" until it is stopped."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(local, "PROGRAM", ("-c", WORKER))
    (tmp_path / "logs").mkdir()
    (tmp_path / SHARED).write_text("word")
    return Place(root=str(tmp_path), token="word", folder=str(tmp_path))


def trial(place: Place, folder: str) -> NodeTrial:
    return NodeTrial(place=place, job=Job(folder), key="key", threads=1, request={"device": "cpu"})


def events(place: Place) -> list[object]:
    path = Path(place.root) / EVENTS.format("key")
    return [from_line(line).event for line in path.read_text().splitlines()]


def test_the_events_of_a_trial_go_into_a_file_of_the_study(place):
    trial(place, "short").start().wait()
    assert events(place) == [Message(text="{'device': 'cpu'}"), Ended(state="finished")]
    assert (Path(place.root) / "logs/worker-key.log").exists()


@pytest.mark.parametrize("by_file", [False, True])
def test_a_stopped_trial_ends_before_the_wait_ends(place, monkeypatch, by_file):
    monkeypatch.setattr(node, "CONTROL_SECONDS", 0.0)
    run = trial(place, "long").start()
    path, until = Path(place.root) / EVENTS.format("key"), time.monotonic() + HANG
    while not (path.exists() and path.read_text()) and time.monotonic() < until:
        run.is_alive(0.01)
    if by_file:
        (Path(place.root) / CONTROL.format("key")).write_text(STOP)
    else:
        run.stop()
    run.wait()
    assert events(place)[-1] == Ended(state="interrupted")


def test_an_error_in_the_thread_is_not_lost(place):
    with pytest.raises(FileNotFoundError):
        trial(Place(root="/no/such", token="", folder=place.folder), "short").start().wait()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token": "another"}, "does not see the folder"),
        ({"root": "/no/such"}, "choose a folder on a file system that all machines share: -o"),
        ({"folder": "/no/such"}, "has no folder /no/such"),
        ({"vitcli": "0.0.1"}, "install the same"),
    ],
)
def test_a_machine_that_differs_is_refused(place, changes, text):
    assert place.find_problem() == ""
    fields = {"root": place.root, "token": "word", "folder": place.folder}
    assert text in Place(**fields | changes).find_problem()


ROOT = Path("runs/mine")


@pytest.fixture
def planned(here) -> RunDir:
    """A study's folder whose only trial has diverged under another driver."""
    run = make_run(0, folder=ROOT / "full/seed0", state="diverged")
    entry: dict[str, Any] = {
        "variant": "full",
        "config_hash": run.read("meta.json")["config_hash"],
        "config": run.spec().model_dump(mode="json"),
    }
    plan = {
        "study": "mine",
        "device": "cpu",
        "data_dir": None,
        "offline": True,
        "command": "vitcli ablate mine",
        "trials": {"full/seed0": entry},
    }
    commit_json(ROOT / PLAN, plan)
    return run


def ends(**options: Any) -> list[Event]:
    events: list[Event] = []
    run_trial(ROOT, "full/seed0", send=events.append, load=SharedData(), **options)
    return [event for event in events if isinstance(event, Ended)]


def test_a_trial_that_diverged_under_another_driver_is_not_trained_again(planned):
    planned.set_status("diverged", 300, "loss is not finite")
    assert ends() == [Ended(state="diverged", reason="loss is not finite")]
    commit_json(planned.path / "meta.json", {"config_hash": "of another trial"})
    (end,) = ends(request={"device": "abacus"})
    assert isinstance(end, Ended)
    assert end.state == "failed", "its folder belongs to another configuration"


def test_a_driver_replaces_fields_of_the_plan_for_its_own_trials(planned):
    planned.set_status("interrupted", 300)
    (end,) = ends(request={"device": "abacus"})
    assert isinstance(end, Ended)
    assert "abacus" in end.reason


def test_a_trial_that_another_process_trains_is_left_to_it(planned):
    planned.set_status("running", 300)
    with planned.lock():
        (end,) = ends()
    assert isinstance(end, Ended)
    assert (end.state, end.exit) == ("failed", 7)


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
