"""Exports are read back: every number, setting and state is that of the run folder."""

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run, record
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.trackers.csv_files import write_csv
from vitcli.runner.trackers.exported import ExportedRun, differing, find_runs, read_run, read_runs
from vitcli.runner.trackers.mlflow_store import MAX_TEXT, STATUS, check_mlflow, write_mlflow

pytestmark = pytest.mark.usefixtures("here")
needs_mlflow = pytest.mark.skipif(not find_spec("mlflow"), reason="needs pip install mlflow")
STORE = Path("store")


def three_runs() -> list[ExportedRun]:
    """Two trainings with different settings, and one that was killed."""
    first = make_run(0, accuracy=0.75)
    first.set_metrics([record(epoch, 0.75) for epoch in range(1, 301)])  # several batches
    make_run(1, accuracy=0.1 + 0.2, changes={"optim.lr": 5e-4})
    make_run(2, state="interrupted", meta={"dirty": True})
    return read_runs(find_runs(()))[0]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_each_run_with_every_digit_of_its_numbers():
    runs = three_runs()
    files = write_csv(runs, Path("table"))
    found = rows(files[0])
    assert [row["run"] for row in found] == [f"quickstart/train/seed{i}" for i in range(3)]
    assert [row["state"] for row in found] == ["finished", "finished", "interrupted"]
    assert [float(row["test_accuracy"]) for row in found] == [0.75, 0.1 + 0.2, 0.5]
    assert [row["commit"] for row in found] == ["c" * 40] * 3
    assert [row["dirty"] for row in found] == ["false", "false", "true"]
    assert [row["test_loss"] for row in found] == ["1.5", "1.5", ""]
    settings = {name for name in found[0] if name.startswith("config.")}
    assert settings == {"config.seed", "config.optim.lr"}, "only what differs"
    assert found[1]["config.optim.lr"] == "0.0005"
    assert [row["config.seed"] for row in found] == ["0", "1", "2"]


def test_csv_has_every_number_of_every_epoch():
    runs = three_runs()
    _, path = write_csv(runs, Path("table"))
    found = {(row["run"], int(row["step"]), row["metric"]): row["value"] for row in rows(path)}
    expected = {
        (run.name, point.step, name): value
        for run in runs
        for point in run.curve
        for name, value in point.values.items()
    }
    assert {key: float(value) for key, value in found.items()} == expected
    assert ("quickstart/train/seed1", 300, "train_loss") in found
    assert not any(metric == "grad_norm" for _, _, metric in found), "it was null"


def test_a_csv_keeps_names_with_commas_and_quotes():
    make_run(0, folder=Path('runs/a, "b"\n'))
    path, _ = write_csv(read_runs(find_runs(()))[0], Path("table"))
    assert rows(path)[0]["run"] == r'a, "b"\n', "control characters are escaped"


def test_one_run_has_no_setting_that_differs():
    make_run(0)
    assert differing(read_runs(find_runs(()))[0]) == []


def test_runs_are_found_by_folder_and_by_name_and_counted_once():
    make_run(0)
    make_run(1)
    make_run(0, experiment="cifar10-tiny")
    names = [run.name for run in find_runs(["quickstart", "runs/quickstart/train/seed1"])]
    assert names == ["quickstart/train/seed0", "quickstart/train/seed1"]
    assert len(find_runs(())) == 3
    assert [run.name for run in find_runs(["cifar10-pocket"])] == ["cifar10-pocket"]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ([], "no runs yet; start with: vitcli train"),
        (["nothing"], "no run is called 'nothing'"),
        ([""], "the name of a run is empty"),
    ],
)
def test_a_run_that_is_not_there_is_named(texts, told):
    with pytest.raises((InputError, ConfigError), match=told):
        find_runs(texts)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "meta.json", "result.json"])
def test_a_damaged_run_is_named_and_the_others_are_exported(name):
    make_run(0)
    broken = make_run(1)
    (broken.path / name).write_text("{\n")
    read, damaged = read_runs(find_runs(()))
    assert [run.name for run in read] == ["quickstart/train/seed0"]
    assert len(damaged) == 1
    assert name in str(damaged[0])


def test_folders_of_this_machine_stay_here():
    run = make_run(0, changes={"data.name": "imagefolder:/home/me/pets"})
    assert read_run(run).config["data.name"] == "imagefolder:pets"


def test_a_missing_package_is_one_line_that_says_what_to_type(monkeypatch):
    monkeypatch.setattr("vitcli.runner.trackers.mlflow_store.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install mlflow"):
        check_mlflow(STORE)


def test_a_store_is_not_added_to(monkeypatch):
    monkeypatch.setattr("vitcli.runner.trackers.mlflow_store.find_spec", lambda _: "found")
    STORE.mkdir()
    check_mlflow(STORE)
    (STORE / "own.txt").touch()
    with pytest.raises(ConfigError, match="-o store exists already and is not empty"):
        check_mlflow(STORE)


def test_a_store_that_cannot_be_written_leaves_nothing(monkeypatch):
    runs = three_runs()
    monkeypatch.setattr("vitcli.runner.trackers.mlflow_store.sys.executable", "false")
    with pytest.raises(UserError, match="the store could not be written: no message"):
        write_mlflow(runs, STORE)
    assert list(STORE.iterdir()) == []


def test_every_state_has_a_status_of_mlflow():
    assert STATUS.keys() == {"running", "interrupted", "finished", "diverged", "failed"}


def test_the_child_gets_no_server(monkeypatch):
    seen: dict[str, Any] = {}

    def run(command, **words):
        seen.update(words, command=command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org")
    monkeypatch.setattr("vitcli.runner.trackers.mlflow_store.subprocess.run", run)
    write_mlflow(three_runs(), STORE)
    assert "MLFLOW_TRACKING_URI" not in seen["env"]
    assert seen["env"]["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert len(json.loads(seen["input"])["runs"]) == 3


READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri="sqlite:///store/mlflow.db")
found = {}
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        found[run.info.run_name] = {
            "experiment": experiment.name, "status": run.info.status,
            "start": run.info.start_time, "end": run.info.end_time,
            "config": run.data.params, "tags": run.data.tags,
            "curves": {
                name: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics
            },
        }
json.dump(found, sys.stdout)
"""


def read_back() -> dict[str, Any]:
    """Read the store with MLflow, in another process."""
    done = subprocess.run(
        [sys.executable, "-c", READ_MLFLOW],
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_mlflow
def test_a_store_is_read_back_by_mlflow():
    runs = three_runs()
    check_mlflow(STORE)
    files = write_mlflow(runs, STORE)
    assert all(path.stat().st_size > 0 for path in files)
    found = read_back()
    assert found.keys() == {run.name for run in runs}
    for run in runs:
        stored = found[run.name]
        assert stored["experiment"] == "quickstart"
        for metric in ("train_loss", "test_accuracy"):
            expected = [[point.step, point.values[metric]] for point in run.curve]
            assert stored["curves"][metric] == expected
        last = run.curve[-1].step
        final = run.numbers["test_accuracy"]
        assert stored["curves"]["result/test_accuracy"] == [[last, final]]
        assert float(stored["config"]["optim.lr"]) == run.config["optim.lr"]
        assert stored["tags"]["vitcli.state"] == run.state
    assert [found[run.name]["status"] for run in runs] == ["FINISHED", "FINISHED", "KILLED"]
    first = found[runs[0].name]
    assert first["end"] - first["start"] == 200_500
    assert first["tags"]["mlflow.source.git.commit"] == "c" * 40
    assert all(len(value) <= MAX_TEXT for value in first["config"].values())


@needs_mlflow
def test_a_run_without_an_epoch_is_in_the_store():
    run = make_run(0, state="failed")
    run.set_metrics([])
    write_mlflow(read_runs([run])[0], STORE)
    assert read_back().keys() == {"quickstart/train/seed0"}
