"""``--stop-after``: a training stops after an epoch, says what it reached, and loses no bit."""

from typing import Any

import pytest

from tests.cli.commands import document, said, vitcli
from tests.runner.train.conftest import train, trains
from tests.same_run import assert_same_run
from vitcli.core.objectives.classify import Classify
from vitcli.runner.errors import ConfigError, DivergedError
from vitcli.runner.run.folder import steps
from vitcli.runner.run.record import read_record

SETTINGS: tuple[dict[str, Any], ...] = (
    {"data.val_split": 16, "train.eval_every": 3},
    {"model.norm": "batch_norm", "train.eval_every": 4},
)


@pytest.mark.ci
@pytest.mark.parametrize("changes", SETTINGS)
def test_a_run_stopped_twice_ends_with_the_bits_of_an_uninterrupted_one(tiny, here, changes):
    calm = train(tiny, "calm", changes).folder
    first = train(tiny, "run", changes, stop_after=1)
    again = train(tiny, "run", changes, stop_after=2, resume=True)
    assert [found.reached["epochs"] for found in (first, again)] == [1, 2]
    assert again.metrics == [*read_record(first.folder).metrics, again.metrics[-1]][:2]
    last = train(tiny, "run", changes, resume=True)
    assert (last.reason, last.state, last.reached) == ("", "finished", {})
    assert_same_run(calm, last.folder)
    outputs = [(run.path / "predictions.npz").read_bytes() for run in (calm, last.folder)]
    assert outputs[0] == outputs[1]


@pytest.mark.shipped_save_policy
def test_a_stop_leaves_a_checkpoint_a_status_and_no_result(tiny, calm):
    found = train(tiny, "runs/run", {"train.eval_every": 3}, stop_after=2)
    run, record = found.folder, found
    assert (record.state, record.step, record.reason) == (
        "interrupted",
        10,
        "stopped after 2 of 4 epochs",
    )
    assert steps(run.checkpoints)[0] == 10
    assert not {"result.json", "predictions.npz"} & {path.name for path in run.path.iterdir()}
    assert not any("test_accuracy" in line for line in record.metrics)
    rates = [[line["lr"] for line in read_record(each).metrics[:2]] for each in (run, calm)]
    assert rates[0] == rates[1], "the schedule is that of the whole training"
    assert run.spec().train.epochs == 4
    (row,) = document("runs", "ls")["runs"]
    assert (row["state"], row["epochs"], row["epochs_planned"]) == ("interrupted", 2, 4)
    measured = document("eval", "run")
    assert row["test_score"] == found.reached["test_accuracy"] == measured["test_accuracy"]
    assert measured["epochs"] == 2


def test_what_was_reached_is_what_a_training_of_so_many_epochs_measures(tiny, here):
    constant = {"optim.schedule": "constant", "train.eval_every": 3}
    whole = train(tiny, "whole", constant | {"train.epochs": 2}).result
    reached = train(tiny, "run", constant, stop_after=2).reached
    for name in ("test_accuracy", "test_loss", "train_loss", "train_flops", "epochs", "num_test"):
        assert reached[name] == whole[name], name
    assert reached["epochs_planned"] == 4
    assert reached["config_hash"] == read_record(here / "run").meta["config_hash"]


def test_a_stop_at_or_after_the_last_epoch_is_the_end(tiny, here):
    found = train(tiny, "run", stop_after=4)
    assert (found.reason, found.state, found.epochs) == ("", "finished", 4)
    assert not trains(train, tiny, "run", stop_after=1000)
    with pytest.raises(ConfigError, match="already has 4 of 4 epochs"):
        train(tiny, "run", stop_after=3)


def test_a_stop_where_the_model_is_broken_counts_as_diverged(tiny, here, monkeypatch):
    original = Classify.outputs
    broken = lambda *a, **k: {n: t * float("nan") for n, t in original(*a, **k).items()}  # noqa: E731
    monkeypatch.setattr(Classify, "outputs", broken)
    with pytest.raises(DivergedError):
        train(tiny, "run", {"train.eval_every": 3}, stop_after=1)
    assert read_record(here / "run").status == "diverged"


def test_the_command_says_what_was_reached_and_refuses_a_trained_epoch(tiny, here):
    words = ("-o", "run", "-s", "train.eval_every=3", "--stop-after", 1)
    _, out, talk = vitcli("train", tiny, *words)
    assert "vitcli train --resume run" in out + talk
    found = document("train", "--resume", "run", "--stop-after", 2)
    assert (found["state"], found["epochs"], found["epochs_planned"]) == ("interrupted", 2, 4)
    assert {"test_accuracy", "train_loss", "config_hash", "train_flops", "hardware"} <= found.keys()
    before = {path.name: path.stat().st_mtime_ns for path in (here / "run").glob("[!.]*")}
    for number in ((1,), (2,), (2, "--dry-run")):
        talk = said(2, "train", "--resume", "run", "--stop-after", *number)
        assert "already has 2 of 4 epochs" in talk
    after = {path.name: path.stat().st_mtime_ns for path in (here / "run").glob("[!.]*")}
    assert after == before
