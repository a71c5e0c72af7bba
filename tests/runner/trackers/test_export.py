"""Exports are read back: every number, setting and state is that of the run folder."""

import contextlib
import csv
import json
import sqlite3
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run, record
from vitcli.runner.errors import ConfigError, ResourceError, UserError
from vitcli.runner.trackers import mlflow_store
from vitcli.runner.trackers.csv_files import write_csv
from vitcli.runner.trackers.exported import ExportedRun, differing, find_runs, read_runs
from vitcli.runner.trackers.mlflow_store import MAX_TEXT, STATUS, check_mlflow, write_mlflow

pytestmark = pytest.mark.usefixtures("here")
STORE = Path("store")


def three_runs() -> list[ExportedRun]:
    """Return two trainings with different settings, and one that was killed."""
    first = make_run(0, accuracy=0.75, changes={"data.name": "imagefolder:/home/me/pets"})
    first.set_metrics([record(epoch, 0.75) for epoch in range(1, 301)])  # several batches
    make_run(1, accuracy=0.1 + 0.2, changes={"optim.lr": 5e-4})
    make_run(2, state="interrupted", meta={"dirty": True})
    return read_runs(find_runs(()))[0]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_every_number_of_every_run_and_epoch():
    runs = three_runs()
    table, curves = map(rows, write_csv(runs, Path("table")))
    columns = {
        "run": [f"quickstart/train/seed{i}" for i in range(3)],
        "state": ["finished", "finished", "interrupted"],
        "commit": ["c" * 40] * 3,
        "dirty": ["false", "false", "true"],
        "test_loss": ["1.5", "1.5", ""],
        "config.seed": ["0", "1", "2"],
        "config.data.name": ["imagefolder:pets", "scenes", "scenes"],
    }
    assert {name: [row[name] for row in table] for name in columns} == columns
    assert [float(row["test_accuracy"]) for row in table] == [0.75, 0.1 + 0.2, 0.5]
    settings = {name for name in table[0] if name.startswith("config.")}
    assert settings == {"config.seed", "config.optim.lr", "config.data.name"}, "what differs"
    assert table[1]["config.optim.lr"] == "0.0005"
    assert differing(runs[:1]) == []
    found = {(row["run"], int(row["step"]), row["metric"]): float(row["value"]) for row in curves}
    assert found == {
        (run.name, point.step, name): value
        for run in runs
        for point in run.curve
        for name, value in point.values.items()
    }
    assert ("quickstart/train/seed1", 300, "train_loss") in found
    assert not any(metric == "grad_norm" for _, _, metric in found), "it was null"


def test_a_csv_keeps_names_with_commas_and_quotes():
    make_run(0, folder=Path('runs/a, "b"\n'))
    path, _ = write_csv(read_runs(find_runs(()))[0], Path("table"))
    assert rows(path)[0]["run"] == r'a, "b"\n', "control characters are escaped"


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


def test_a_store_needs_its_package_and_an_empty_folder(monkeypatch):
    monkeypatch.setattr(mlflow_store, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install mlflow"):
        check_mlflow(STORE)
    monkeypatch.setattr(mlflow_store, "find_spec", lambda _: "found")
    STORE.mkdir()
    check_mlflow(STORE)
    monkeypatch.setattr(mlflow_store.sys, "executable", "false")
    with pytest.raises(ResourceError):
        write_mlflow(three_runs(), STORE)
    assert list(STORE.iterdir()) == [], "a store that cannot be written leaves nothing"
    (STORE / "own.txt").touch()
    with pytest.raises(ConfigError, match="-o store"):
        check_mlflow(STORE)
    assert STATUS.keys() == {"running", "interrupted", "finished", "diverged", "failed"}


def test_the_child_gets_no_server(monkeypatch):
    seen: dict[str, Any] = {}

    def run(command, **words):
        seen.update(words, command=command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org")
    monkeypatch.setattr(mlflow_store.subprocess, "run", run)
    write_mlflow(three_runs(), STORE)
    assert "MLFLOW_TRACKING_URI" not in seen["env"]
    assert "-P" in seen["command"], "and no module of the working folder"
    assert seen["env"]["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert len(json.loads(seen["input"])["runs"]) == 3


@pytest.mark.ci  # the import of mlflow takes seconds
@pytest.mark.skipif(not find_spec("mlflow"), reason="needs pip install mlflow")
def test_a_store_holds_every_number_setting_and_state():
    runs = three_runs()
    empty = make_run(3, state="failed")
    empty.set_metrics([])
    write_mlflow([*runs, *read_runs([empty])[0]], STORE)
    with contextlib.closing(sqlite3.connect(STORE / "mlflow.db")) as store:
        rows = "select name, run_uuid, status, end_time - start_time from runs order by name"
        found = {name: facts for name, *facts in store.execute(rows)}

        def read(columns: str, table: str, run: str) -> list[tuple]:
            text = f"select {columns} from {table} where run_uuid = ?"
            return store.execute(text, found[run][:1]).fetchall()

        assert [status for _, status, _ in found.values()] == [
            *("FINISHED", "FINISHED", "KILLED", "FAILED")
        ]
        for run in runs:
            metrics = read("key, step, value", "metrics", run.name)
            wanted = [(name, point.step, value) for point in run.curve
                      for name, value in point.values.items()]  # fmt: skip
            accuracy = run.numbers["test_accuracy"]
            assert {*metrics} >= {*wanted, ("result/test_accuracy", run.curve[-1].step, accuracy)}
            config = dict(read("key, value", "params", run.name))
            assert float(config["optim.lr"]) == run.config["optim.lr"]
            assert all(len(value) <= MAX_TEXT for value in config.values())
            tags = dict(read("key, value", "tags", run.name))
            assert tags["vitcli.state"] == run.state
            assert tags["mlflow.source.git.commit"] == "c" * 40
        assert found[runs[0].name][2] == 200_500
        assert ("quickstart",) in store.execute("select name from experiments").fetchall()
