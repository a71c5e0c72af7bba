"""A worker process: a trial that another driver trains, and the signals of a scheduler."""

import os
import signal
from typing import Any

import pytest

from tests.runner.study.trials import ROOT, fabricate, write_study
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import write_plan
from vitcli.runner.train.events import Ended, Event
from vitcli.runner.train.signals import StopFlag


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
