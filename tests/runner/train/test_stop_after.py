"""``--stop-after``: a training stops after an epoch, says what it reached, and loses no bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import torchrun
from tests.same_run import assert_same_run
from tests.task_table import TinyTask
from vitcli.cli.main import app
from vitcli.core.objectives.classify import Classify
from vitcli.runner.errors import ConfigError, DivergedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.train.dry_run import dry_run
from vitcli.runner.train.events import EpochDone, Progress
from vitcli.runner.train.start import FinishedTraining, Request, start


def train(tiny: Path, folder: str, changes: dict[str, Any] | None = None, **options: Any):
    return start(load_experiment(str(tiny), changes), Request(output=Path(folder), **options))


def vitcli(*words: object, code: int = 0) -> str:
    """Return what a command prints, or its errors if it is to fail."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def document(*words: object) -> Any:
    return json.loads(vitcli(*words, "--json"))


def saved_outputs(run: RunDir) -> bytes:
    return (run.path / "predictions.npz").read_bytes()


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"train.eval_every": 3},
    {"data.val_split": 16, "train.eval_every": 3},
    {"model.norm": "batch_norm", "train.eval_every": 4},
)


@pytest.mark.ci
@pytest.mark.parametrize("changes", SETTINGS)
def test_a_run_stopped_twice_ends_with_the_bits_of_an_uninterrupted_one(tiny, here, changes):
    calm = train(tiny, "calm", changes).run
    first = train(tiny, "run", changes, stop_after=1)
    again = train(tiny, "run", changes, stop_after=2, resume=True)
    assert [found.result["epochs"] for found in (first, again)] == [1, 2]
    assert again.run.metrics() == [*first.run.metrics(), again.run.metrics()[-1]][:2]
    last = train(tiny, "run", changes, resume=True)
    assert (last.stopped, last.run.status()["state"]) == ("", "finished")
    assert last.run.reached() == {}
    assert_same_run(calm, last.run)
    assert saved_outputs(calm) == saved_outputs(last.run)


def test_a_stop_has_the_schedule_of_the_whole_training(tiny, here):
    rates = [record["lr"] for record in train(tiny, "calm").run.metrics()]
    stopped = train(tiny, "run", stop_after=2).run
    assert [record["lr"] for record in stopped.metrics()] == rates[:2]
    assert stopped.spec() == RunDir(here / "calm").spec()
    hashes = {run.read("meta.json")["config_hash"] for run in (stopped, RunDir(here / "calm"))}
    assert len(hashes) == 1


@pytest.mark.shipped_save_policy
def test_a_stop_leaves_a_checkpoint_a_status_and_no_result(tiny, here):
    found = train(tiny, "run", {"train.eval_every": 3}, stop_after=2)
    run = found.run
    status = run.status()
    assert (status["state"], status["step"]) == ("interrupted", 10)
    assert status["reason"] == found.stopped == "stopped after 2 of 4 epochs"
    assert steps(run.checkpoints)[0] == 10
    left = {path.name for path in run.path.iterdir()}
    assert not {"result.json", "predictions.npz"} & left
    assert not any("test_accuracy" in record for record in run.metrics())


def test_what_was_reached_is_what_a_training_of_so_many_epochs_measures(tiny, here):
    constant = {"optim.schedule": "constant", "train.eval_every": 3}
    whole = train(tiny, "whole", constant | {"train.epochs": 2}).result
    reached = train(tiny, "run", constant, stop_after=2).run.reached()
    for name in ("test_accuracy", "test_loss", "train_loss", "train_flops", "epochs", "num_test"):
        assert reached[name] == whole[name], name
    assert reached["epochs_planned"] == 4
    assert reached["config_hash"] == RunDir(here / "run").read("meta.json")["config_hash"]
    assert reached["train_seconds"] > 0


def test_the_accuracy_of_an_evaluated_epoch_is_not_measured_again(tiny, here, monkeypatch):
    counted, original = [], Classify.outputs
    monkeypatch.setattr(Classify, "outputs", lambda *a, **k: counted.append(1) or original(*a, **k))
    found = train(tiny, "run", stop_after=1)
    assert len(counted) == 1
    assert found.result["test_accuracy"] == found.run.metrics()[0]["test_accuracy"]


def test_a_run_killed_inside_an_epoch_continues_to_its_end(tiny, here):
    calm = train(tiny, "calm").run

    def die(event: object) -> None:
        if isinstance(event, EpochDone) and event.record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(load_experiment(str(tiny)), Request(output=Path("run")), on_event=die)
    assert train(tiny, "run", resume=True, stop_after=3).result["epochs"] == 3
    assert_same_run(calm, train(tiny, "run", resume=True).run)


def test_the_time_that_is_left_ends_at_the_stop(tiny, here, monkeypatch):
    monkeypatch.setattr("vitcli.runner.train.trainer.REPORT_SECONDS", 0.0)
    seen: list[Progress] = []
    request = Request(output=Path("run"), stop_after=1)
    keep = lambda event: seen.append(event) if isinstance(event, Progress) else None  # noqa: E731
    start(load_experiment(str(tiny)), request, on_event=keep)
    assert seen[-1].step == 5
    assert seen[-1].seconds_left == 0


@pytest.mark.parametrize("number", [4, 5, 1000])
def test_a_stop_at_or_after_the_last_epoch_is_the_end(tiny, here, number):
    found = train(tiny, "run", stop_after=number)
    assert (found.stopped, found.run.status()["state"]) == ("", "finished")
    assert not train(tiny, "run", stop_after=number).trained


def test_a_stop_where_the_model_is_broken_counts_as_diverged(tiny, here, monkeypatch):
    original = Classify.outputs
    broken = lambda *a, **k: {n: t * float("nan") for n, t in original(*a, **k).items()}  # noqa: E731
    monkeypatch.setattr(Classify, "outputs", broken)
    with pytest.raises(DivergedError):
        train(tiny, "run", {"train.eval_every": 3}, stop_after=1)
    assert RunDir(here / "run").status()["state"] == "diverged"


@pytest.fixture
def stopped(tiny, here) -> FinishedTraining:
    return train(tiny, "run", {"train.eval_every": 3}, stop_after=2)


@pytest.mark.parametrize("number", [1, 2])
def test_an_epoch_that_is_trained_already_is_refused(stopped, here, number):
    before = {path.name: path.stat().st_mtime_ns for path in (here / "run").iterdir()}
    said = vitcli("train", "--resume", "run", "--stop-after", number, code=2)
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "run already has 2 of 4 epochs" in line
    after = {path.name: path.stat().st_mtime_ns for path in (here / "run").iterdir()}
    assert after == before
    dry = vitcli("train", "--resume", "run", "--stop-after", number, "--dry-run", code=2)
    assert "already has 2 of 4 epochs" in dry


def test_an_epoch_of_a_finished_run_is_refused(tiny, here):
    train(tiny, "run")
    with pytest.raises(ConfigError, match="already has 4 of 4 epochs"):
        train(tiny, "run", stop_after=3)
    assert train(tiny, "run", stop_after=3, rerun=True).result["epochs"] == 3


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", ""])
def test_other_values_are_refused(tiny, here, value):
    vitcli("train", tiny, "-o", "run", "--stop-after", value, code=2)
    assert not (here / "run").exists()


def test_the_command_prints_what_was_reached_and_how_to_continue(tiny, here):
    words = ("train", tiny, "-o", "run", "-s", "train.eval_every=3", "--stop-after", 2)
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    reached = RunDir(here / "run").reached()
    assert f"{100 * reached['test_accuracy']:.2f} % (epoch 2)" in result.stdout
    assert f"{reached['train_loss']:.4f}" in result.stdout
    assert "trained        2 of 4 epochs" in result.stdout
    assert result.stdout.splitlines()[-1] == "next           vitcli train --resume run"
    assert "stopped after 2 of 4 epochs" in result.stderr
    assert vitcli("train", "--resume", "run").splitlines()[-1].endswith("vitcli eval run")
    assert "next: vitcli train --resume" not in vitcli("runs", "show", "run")


def test_json_is_one_document(tiny, here):
    found = document("train", tiny, "-o", "run", "--stop-after", 2)
    assert (found["state"], found["reason"]) == ("interrupted", "stopped after 2 of 4 epochs")
    assert (found["epochs"], found["epochs_planned"], found["seed"]) == (2, 4, 0)
    assert found["run"] == "run"
    assert {"test_accuracy", "train_loss", "config_hash", "train_flops", "hardware"} <= found.keys()


def test_other_commands_know_a_stopped_run(tiny, here):
    place = "runs/pets"
    accuracy = train(tiny, place, {"train.eval_every": 3}, stop_after=2).result["test_accuracy"]
    (row,) = document("runs", "ls")
    assert (row["state"], row["epochs"], row["epochs_planned"]) == ("interrupted", 2, 4)
    assert row["reason"] == "stopped after 2 of 4 epochs"
    assert row["test_accuracy"] == accuracy
    assert "interrupted 2/4" in vitcli("runs", "ls")
    shown = document("runs", "show", "pets")
    assert shown["status"]["reached"]["test_accuracy"] == accuracy
    assert "config" not in shown["meta"], "the settings are shown once"
    assert "(stopped after 2 of 4 epochs)" in vitcli("runs", "show", "pets")
    vitcli("runs", "verify", "pets")
    found = document("eval", "pets")
    assert found["test_accuracy"] == accuracy
    assert len(found["accuracy_interval_95"]) == 2
    assert found["epochs"] == 2


def test_a_search_run_measures_no_test_image(tiny, here):
    split = {"data.val_split": 16}
    reached = train(tiny, "run", split, stop_after=1, without_test=True).result
    assert "test_accuracy" not in reached
    assert reached["val_accuracy"] is not None
    said = vitcli("train", "--resume", "run", "--stop-after", 2)
    assert said.startswith("val accuracy")


def test_the_estimate_shows_the_stop_beside_the_whole(tiny, here):
    experiment, request = load_experiment(str(tiny)), Request(output=Path("run"))
    found = dry_run(experiment, replace(request, stop_after=1), print)
    whole, stop = found.as_json(), found.until_stop
    assert whole["train_flops_until_stop"] * 4 == whole["train_flops"]
    assert stop.train_seconds * 4 == pytest.approx(found.train_seconds)
    assert whole["estimated_seconds_until_stop"] < whole["estimated_seconds"]
    assert "1 of 4 epochs" in found.as_text()
    plain = replace(found, stop_after=None)
    assert plain.until_stop is plain
    assert "of 4 epochs" not in plain.as_text()


@pytest.mark.slow
def test_ranks_stop_together_after_an_epoch(here, tmp_path):
    task = TinyTask("classify", here / "tasks")
    words = ("train", str(task.path), "--epochs", "3")
    torchrun.run(*words, "-o", "calm")
    said = torchrun.run(*words, "-o", "run", "--stop-after", "1")
    run = RunDir(here / "run")
    assert run.status()["reason"] == "stopped after 1 of 3 epochs"
    assert "torchrun --nproc-per-node 2 -m vitcli train --resume run" in said
    torchrun.run("train", "--resume", "run", "--stop-after", "1", code=1)
    torchrun.run("train", "--resume", "run", "--stop-after", "2")
    torchrun.run("train", "--resume", "run")
    assert_same_run(RunDir(here / "calm"), run)
