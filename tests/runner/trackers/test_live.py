"""Live trackers: they get every epoch once, and no failure of theirs reaches the training."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import vitcli
from tests.fabricated import make_run
from tests.patience import HANG
from tests.runner.train import conftest
from tests.same_run import assert_same_run
from vitcli.core.spec.rows import Row
from vitcli.runner.engines.worker import read_request
from vitcli.runner.errors import ConfigError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.listing import delete_run_files
from vitcli.runner.study.plan import Options
from vitcli.runner.trackers import live

FAKES = "tests.runner.trackers.fake_trackers"


@pytest.fixture(autouse=True)
def fakes(monkeypatch, environment):
    """Add the trackers of ``fake_trackers`` to the table."""
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    for name in ("Notes", "CannotBegin", "FailsLater", "Hangs"):
        monkeypatch.setitem(live.TRACKERS, name, Row(about="", build=f"{FAKES}:{name}"))


def train(tiny, messages=None, **options):
    say = (messages if messages is not None else []).append
    return conftest.train(tiny, "run", on_message=say, **options).run


def notes(run, name="Notes"):
    lines = (run.path / "tracker" / name / "notes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_resumed_training_continues_the_run_of_the_tracker(tiny):
    Path("json.py").write_text("raise ImportError('of the working folder')")
    train(tiny, track=("Notes",), stop_after=2)
    run = train(tiny, track=("Notes",), resume=True)
    assert notes(run) == [
        *(["begin", None], ["log", 1], ["log", 2], ["finish", "interrupted"]),
        *(["begin", "id of run"], ["log", 3], ["log", 4], ["finish", "finished"]),
    ]
    assert live.tracked(run, "Notes") == {"id": "id of run", "where": "look here", "step": 20}
    delete_run_files(run.path)
    assert not (run.path / "tracker").exists()


@pytest.mark.parametrize(
    ("seconds", "lost"),
    [
        (60, {"CannotBegin": (4, "RuntimeError: no API key"),
              "FailsLater": (2, "ConnectionError: the server is gone")}),
        (1, {"Hangs": (4, "it did not end within 1 s")}),
    ],
)  # fmt: skip
def test_a_tracker_that_fails_or_hangs_costs_one_line(
    tiny, copy_of_run, monkeypatch, seconds, lost
):
    monkeypatch.setattr(live, "GRACE_SECONDS", seconds)
    messages: list[str] = []
    run = train(tiny, messages, track=(*lost,))
    for name, (epochs, why) in lost.items():
        (told,) = [text for text in messages if name in text]
        assert f"{name} lacks {epochs} of 4 epochs and the result ({why})" in told
    assert run.status()["state"] == "finished"
    assert_same_run(RunDir(copy_of_run(Path("calm"))), run)
    assert not train(tiny, track=(), resume=True).reached()


def test_a_tracker_ends_with_a_killed_training(here):
    code = (
        "import sys, time; from vitcli.runner.trackers import live; from vitcli.core.spec.rows"
        f" import Row; live.TRACKERS['Notes'] = Row(about='', build='{FAKES}:Notes')\n"
        "from vitcli.runner.run.folder import RunDir; from pathlib import Path\n"
        "run = RunDir(Path('runs/quickstart/train/seed0'))\n"
        "with run.lock(), live.live_trackers(['Notes'], run, True, print) as start:\n"
        "    start(); time.sleep(600)"
    )
    run = make_run(0, state="interrupted")
    run.set_status("running", 300)
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not live.tracked(run, "Notes"):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    with run.lock():  # as a training that continues the run at once
        until = time.monotonic() + 20
        while notes(run)[-1][0] != "finish" and time.monotonic() < until:
            time.sleep(0.05)
    assert notes(run)[-1][0] == "finish"


def test_unknown_and_missing_trackers_are_refused(monkeypatch):
    code, _, talk = vitcli("train", "--track", "wandbb")
    assert (code, "did you mean 'wandb'" in talk) == (2, True)
    monkeypatch.setitem(live.TRACKERS, "no_such_package", Row(about=""))
    with pytest.raises(ConfigError, match="type: pip install no_such_package"):
        live.check_trackers(["no_such_package"])


def test_the_trials_of_a_study_are_tracked():
    plan = json.loads(json.dumps(Options(track=("mlflow",)).request()))
    assert read_request(plan, Path("run")).track == ("mlflow",)
    del plan["track"]  # as older versions wrote it
    assert read_request(plan, Path("run")).track == ()


def track_offline(tiny, name, monkeypatch):
    monkeypatch.setattr(live, "GRACE_SECONDS", HANG)
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    train(tiny, track=(name,), stop_after=2, offline=True)
    messages: list[str] = []
    run = train(tiny, messages, track=(name,), resume=True, offline=True)
    assert not [text for text in messages if "warning" in text]
    return run, live.tracked(run, name)


@pytest.mark.ci
def test_mlflow_has_each_epoch_once_and_the_result(tiny, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # --offline does not use it
    run, note = track_offline(tiny, "mlflow", monkeypatch)
    with contextlib.closing(sqlite3.connect("runs/mlflow.db")) as store:

        def read(columns, table):
            text = f"select {columns} from {table} where run_uuid = ?"
            return store.execute(text, [note["id"]]).fetchall()

        steps = [step for key, step in read("key, step", "metrics") if key == "test_accuracy"]
        assert sorted(steps) == [5, 10, 15, 20]
        assert read("status", "runs") == [("FINISHED",)]
        assert ("optim.lr", "0.002") in read("key, value", "params")
        accuracy = run.read("result.json")["test_accuracy"]
        assert ("result/test_accuracy", accuracy) in read("key, value", "latest_metrics")
    assert note["where"] == "mlflow ui --backend-store-uri sqlite:///runs/mlflow.db"


@pytest.mark.ci
def test_wandb_writes_below_the_run_without_a_network(tiny, monkeypatch):
    _, note = track_offline(tiny, "wandb", monkeypatch)
    files = list(Path(note["where"].removeprefix("wandb sync ")).glob(f"run-{note['id']}.wandb"))
    assert [file.parts[:4] for file in files] == [("run", "tracker", "wandb", "wandb")]
    assert files[0].stat().st_size > 0
