"""A worker process: what it leaves alone, what its driver may set, and which signals count."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.events import Ended, Event
from vitcli.runner.train.signals import StopFlag

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
