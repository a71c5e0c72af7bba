"""Trackers get every number of a run, and no failure of theirs reaches the training."""

import csv
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from tests.cli.commands import said, vitcli
from tests.fabricated import make_run
from tests.runner.train import conftest
from tests.same_run import assert_same_run
from vitcli.plugins.trackers import live
from vitcli.plugins.trackers.trackers import final_numbers, sound_record, write_csv
from vitcli.runner.engines.worker import read_request
from vitcli.runner.errors import UserError
from vitcli.runner.run.folder import RunDir, find_runs
from vitcli.runner.run.record import is_number, read_record
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message, printable

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes a library, which notes the calls of W&B, trackio and MLflow."""

    def put(name: str) -> Any:
        library = MagicMock()
        library.__spec__ = ModuleSpec(name, None)
        library.login.return_value = False
        library.search_runs.return_value = []
        library.init.return_value.configure_mock(url="", dir="wandb/offline-run-1/files")
        monkeypatch.setitem(sys.modules, name, library)
        return library

    return put


def logged(library: Any) -> dict[int, dict[str, float]]:
    numbers: dict[int, dict[str, float]] = {}
    logs = (library.init.return_value.log, library.log_metrics)
    for made in (made for log in logs for made in log.call_args_list):
        numbers.setdefault(made.kwargs["step"], {}).update(made.args[0])
    return numbers


def train(tiny, on_message=ignore_message, **options):
    return conftest.train(tiny, "run", on_message=on_message, offline=True, **options).folder


def test_trackers_get_every_number_live_and_by_export(tiny, install, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # --offline does not use it
    ends = {"wandb": call(exit_code=0), "trackio": call(), "mlflow": call("FINISHED")}
    libraries = {name: install(name) for name in ends}
    run = sound_record(train(tiny, track=(*ends,)))
    wanted = {
        record["step"]: {name: n for name, n in record.items() if name != "step" and is_number(n)}
        for record in run.metrics
    }
    assert [*wanted] == [5, 10, 15, 20]
    wanted[20] |= {f"result/{key}": value for key, value in final_numbers(run).items()}
    assert "result/test_accuracy" in wanted[20]
    for name, library in libraries.items():
        assert logged(library) == wanted
        end = library.end_run if name == "mlflow" else library.init.return_value.finish
        assert end.call_args == ends[name]
        assert "127.0.0.1" not in str(library.set_tracking_uri.call_args)
        assert all(len(made.args[0]) <= 100 for made in library.log_params.call_args_list)
        again = install(name)
        code, out, _ = vitcli("runs", "export", "run", "--format", name, "--json", "--offline")
        assert (code, json.loads(out)["runs"], logged(again)) == (0, ["run"], wanted)


def test_a_resumed_training_continues_the_run_of_the_tracker(tiny, install):
    library = install("wandb")
    train(tiny, track=("wandb",), stop_after=2)
    assert library.init.return_value.finish.call_args == call(exit_code=1)
    train(tiny, track=("wandb",), resume=True)
    first, second = (made.kwargs["id"] for made in library.init.call_args_list)
    assert first == second
    assert [*logged(library)] == [5, 10, 15, 20]


def hang(*_: Any, **__: Any) -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("place", "effect"),
    [
        ("init", RuntimeError("no API key")),
        ("init.return_value.log", [None, None, ConnectionError("the server is gone")]),
        ("init.return_value.log", hang),
    ],
)
def test_a_tracker_that_fails_or_hangs_costs_one_line(
    tiny, install, copy_of_run, monkeypatch, place, effect
):
    install("trackio").configure_mock(**{f"{place}.side_effect": effect})
    monkeypatch.setattr(live, "END_SECONDS", 0.5 if effect is hang else 60)
    messages: list[str] = []
    run = train(tiny, messages.append, track=("trackio",))
    assert sum("warning: trackio" in text for text in messages) == 1
    assert read_record(run).status == "finished"
    assert_same_run(RunDir(copy_of_run(Path("calm"))), run)


def test_trackers_that_cannot_be_used_are_refused(install, monkeypatch):
    monkeypatch.delenv("VITCLI_OFFLINE", raising=False)
    for words in ("train --track wandbb", "train --track wandb", "runs export --format wandb"):
        assert vitcli(*words.split())[0] == 2
    install("wandb")
    make_run(0)
    assert vitcli("runs", "export", "--format", "wandb", "-o", "x")[0] == 2, "-o is of CSV files"
    assert vitcli("runs", "export", "--format", "wandb")[0] == 5, "no API key"


def test_the_trials_of_a_study_are_tracked():
    plan = json.loads(json.dumps(Options(track=("mlflow",)).request()))
    assert read_request(plan, Path("run")).track == ("mlflow",)
    del plan["track"]  # as older versions wrote it
    assert read_request(plan, Path("run")).track == ()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_every_number_of_every_run_and_epoch():
    make_run(0, accuracy=0.75, changes={"data.name": "imagefolder:/home/me/pets"})
    make_run(1, accuracy=0.1 + 0.2, changes={"optim.lr": 5e-4})
    make_run(2, state="interrupted", meta={"dirty": True}, folder=Path('runs/a, "b"\n'))
    runs = [sound_record(run) for run in find_runs(())]
    table, curves = map(rows, write_csv(runs, Path("table")))
    columns = {
        "run": [r'a, "b"\n', "quickstart/train/seed0", "quickstart/train/seed1"],
        "state": ["interrupted", "finished", "finished"],
        "commit": ["c" * 40] * 3,
        "dirty": ["true", "false", "false"],
        "test_loss": ["", "1.5", "1.5"],
        "config.seed": ["2", "0", "1"],
        "config.data.name": ["scenes", "imagefolder:pets", "scenes"],
        "config.optim.lr": ["0.002", "0.002", "0.0005"],
    }
    assert {name: [row[name] for row in table] for name in columns} == columns
    assert {name for name in table[0] if name.startswith("config.")} <= {*columns}, "what differs"
    assert [float(row["test_accuracy"]) for row in table] == [0.5, 0.75, 0.1 + 0.2]
    found = {(row["run"], int(row["step"]), row["metric"]): float(row["value"]) for row in curves}
    assert found == {
        (printable(run.name), record["step"], name): value
        for run in runs
        for record in run.metrics
        for name, value in record.items()
        if name not in ("step", "epoch") and is_number(value)
    }


def test_runs_are_found_by_folder_and_by_name_and_counted_once():
    for texts in ([], ["nothing"], [""]):
        with pytest.raises(UserError):
            find_runs(texts)
    make_run(0)
    make_run(1)
    make_run(0, experiment="cifar10-tiny")
    names = [run.name for run in find_runs(["quickstart", "runs/quickstart/train/seed1"])]
    assert names == ["quickstart/train/seed0", "quickstart/train/seed1"]
    assert len(find_runs(())) == 3
    assert [run.name for run in find_runs(["cifar10-pocket"])] == ["cifar10-pocket"]


EXPORT = ("runs", "export", "--format", "csv", "-o", "table")


@pytest.mark.parametrize(("healthy", "code"), [(1, 3), (0, 4)])
def test_a_damaged_run_is_named_and_gives_its_exit_code(healthy, code):
    for seed in range(healthy):
        make_run(seed)
    (make_run(7).path / "metrics.jsonl").write_text("{\n")
    assert "seed7: metrics.jsonl: line 1" in said(code, *EXPORT)
    assert Path("table/runs.csv").exists() == bool(healthy)


@pytest.mark.parametrize("name", ["runs.csv", "curves.csv"])
def test_an_export_replaces_what_it_wrote_and_no_table_of_a_person(name):
    make_run(0)
    for _ in range(2):
        assert vitcli(*EXPORT)[0] == 0
    (Path("table") / name).write_text("name,grade\nanna,1\n")
    assert vitcli(*EXPORT)[0] == 2
    assert (Path("table") / name).read_text() == "name,grade\nanna,1\n"
