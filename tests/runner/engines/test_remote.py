"""Engines of a cluster: a scheduler in this process, a machine of a cluster, a worker."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run
from tests.patience import HANG
from tests.runner.study.trials import ROOT, fabricate, write_study
from vitcli.runner.engines import local, node
from vitcli.runner.engines.engine import MAX_ATTEMPTS, Job, Setup
from vitcli.runner.engines.node import CONTROL, EVENTS, SHARED, STOP, NodeTrial, Place
from vitcli.runner.engines.remote import RemoteEngine, Ticket, result_of
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import write_plan
from vitcli.runner.train.events import (
    Ended,
    Event,
    Message,
    Started,
    TrialEvent,
    from_line,
    to_line,
)
from vitcli.runner.train.signals import StopFlag

NAMES = dict.fromkeys(("folder", "task", "headline", "data", "device", "precision", "kernels"), "")
NUMBERS = dict.fromkeys(
    ("parameters", "num_train", "num_test", "epochs", "steps_per_epoch", "first_step"), 1
)
STARTED = Started(**NAMES, **NUMBERS)  # type: ignore[arg-type]
FINISHED = Ended(state="finished", score=0.5)


class Scheduler(RemoteEngine):
    """A scheduler that does with each submitted trial what the test says."""

    poll_seconds = 0.0

    def __init__(self, root: Path, jobs: Sequence[Job], *plans: list[Event | str], count=None):
        super().__init__(root, jobs, Setup(threads=1, count=count))
        self.plans = list(plans)
        self.submitted: list[Job] = []
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.left: dict[str, str] = {}
        self.most = 0

    def open(self) -> Iterator[TrialEvent]:
        yield from ()

    def submit(self, tickets: Sequence[Ticket]) -> Iterator[TrialEvent]:
        for ticket in tickets:
            self.submitted.append(ticket.job)
            *events, last = self.plans.pop(0)
            for event in events:
                assert not isinstance(event, str)
                self.write(ticket, event)
            if isinstance(last, str):  # the scheduler has lost the trial
                self.left[ticket.job.folder] = last
            else:
                self.write(ticket, last)
        self.most = max(self.most, len(self.active))
        yield from ()

    def write(self, ticket: Ticket, event: Event) -> None:
        with (self.root / EVENTS.format(ticket.key)).open("a") as file:
            file.write(to_line(TrialEvent(ticket.job.folder, event)))

    def gone(self, tickets: Sequence[Ticket]) -> dict[str, str]:
        return {ticket.job.folder: self.left.pop(ticket.job.folder) for ticket in tickets
                if ticket.job.folder in self.left}  # fmt: skip

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        self.cancelled += [ticket.job.folder for ticket in tickets]
        self.asked = [path.read_text() for path in self.root.glob("logs/*.control")]
        self.left |= {ticket.job.folder: "cancelled" for ticket in tickets}


def run(engine: Scheduler, tick=lambda: None) -> list[Event]:
    return [found.event for found in engine.events(tick)]


def test_a_lost_trial_is_handed_in_again_and_has_failed_after_the_last_attempt(tmp_path):
    lost: list[list[Event | str]] = [[STARTED, "node down"] for _ in range(MAX_ATTEMPTS)]
    engine = Scheduler(tmp_path, [Job("a/seed0")], *lost)
    events = run(engine)
    assert [job.attempt for job in engine.submitted] == [1, 2, 3]
    texts = [event.text for event in events if isinstance(event, Message)]
    assert texts == ["node down; it continues from its checkpoint"] * 2
    assert events[-1] == Ended(state="failed", reason="node down")


def test_a_trial_that_others_stopped_continues_and_that_is_no_attempt(tmp_path):
    stopped: list[Event | str] = [STARTED, Ended(state="interrupted"), "gone"]
    engine = Scheduler(tmp_path, [Job("a/seed0")], *[stopped] * 5, [FINISHED])
    assert run(engine)[-1] == FINISHED
    assert {job.attempt for job in engine.submitted} == {1}
    assert len(engine.submitted) == 6


def test_a_job_that_the_scheduler_queues_again_is_not_handed_in_again(tmp_path):
    plan = [STARTED, Ended(state="interrupted"), STARTED, Message(text="x"), FINISHED]
    engine = Scheduler(tmp_path, [Job("a/seed0")], plan)
    assert run(engine) == [STARTED, STARTED, Message(text="x"), FINISHED]
    assert not list(tmp_path.glob("logs/*.events"))
    assert engine.cancelled == []
    lost = [STARTED, Ended(state="interrupted"), STARTED, "node down"]
    engine = Scheduler(tmp_path, [Job("a/seed0")], lost, [FINISHED])
    run(engine)
    assert [job.attempt for job in engine.submitted] == [1, 2], "it was lost after it began again"


@pytest.mark.usefixtures("here")
def test_a_trial_whose_machine_went_down_after_its_result_has_finished():
    make_run(0, folder=Path("study/a/seed0"), accuracy=0.75)
    engine = Scheduler(Path("study"), [Job("a/seed0")], ["node down"])
    assert run(engine) == [Ended(state="finished", score=0.75)]
    search = make_run(2, folder=Path("study/a/seed2"))
    record = search.read("result.json") | {"num_test": 0, "val_accuracy": 0.5}
    commit_json(search.path / "result.json", record)
    assert result_of(search) == Ended(state="finished", score=0.5), "it has no test images"
    unfinished = make_run(1, folder=Path("study/a/seed1"), state="interrupted")
    assert result_of(unfinished) is None


def test_a_stop_cancels_and_a_stopped_trial_is_interrupted(tmp_path):
    engine = Scheduler(tmp_path, [Job("a"), Job("b"), Job("c")], [STARTED], [STARTED], count=2)

    def tick() -> None:
        if len(engine.submitted) == 2 and not engine.stopping:
            engine.stop()

    events = run(engine, tick)
    assert engine.cancelled == ["a", "b"]
    assert engine.asked == ["stop", "stop"]
    assert not list(tmp_path.glob("logs/*-*.*")), "neither events nor control files are left"
    assert events[2:] == [Ended(state="interrupted", reason="cancelled")] * 2
    assert [job.folder for job in engine.submitted] == ["a", "b"], "no further trial begins"


def test_no_more_trials_at_once_than_asked_and_added_jobs_are_trained(tmp_path):
    engine = Scheduler(tmp_path, [Job("a"), Job("b"), Job("c")], *[[FINISHED]] * 4, count=2)
    seen = []
    for found in engine.events(lambda: None):
        seen.append(found.folder)
        if len(seen) == 3:
            engine.add(Job("d"))
    assert seen == ["a", "b", "c", "d"]
    assert engine.most == 2


def test_a_driver_that_fails_takes_its_trials_back(tmp_path):
    engine = Scheduler(tmp_path, [Job("a")], [STARTED])
    events = engine.events(lambda: None)
    assert next(events).event == STARTED
    events.close()
    assert engine.cancelled == ["a"]


def test_a_line_that_is_not_whole_waits_for_its_rest(tmp_path):
    engine = Scheduler(tmp_path, [])
    ticket = Ticket(Job("a"), "key")
    (tmp_path / "logs").mkdir(exist_ok=True)
    path = tmp_path / EVENTS.format("key")
    line = to_line(TrialEvent("a", Message(text="whole")))
    path.write_text("{torn by a machine that went down\n" + line[:20])
    assert list(engine._read(ticket)) == []
    path.write_text("{torn by a machine that went down\n" + line)
    assert [found.event for found in engine._read(ticket)] == [Message(text="whole")]


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
