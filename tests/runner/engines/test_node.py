"""A machine of a cluster: what it refuses, and the events of its worker process."""

import time
from pathlib import Path

import pytest

from tests.patience import HANG
from vitcli.runner.engines import local, node
from vitcli.runner.engines.engine import Job
from vitcli.runner.engines.node import CONTROL, EVENTS, SHARED, STOP, NodeTrial, Place
from vitcli.runner.train.events import Ended, Message, from_line

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
