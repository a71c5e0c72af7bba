"""A run that is stopped at any instant, or by ``--stop-after``, and continued loses no bit."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.cli import commands
from tests.patience import HANG
from tests.runner.train.conftest import continue_run, files, often, stops_after, train, trains
from tests.same_run import assert_same_run, final_tensors
from tests.torchrun import wait_for_checkpoint
from vitcli.core.objectives.classify import EXPLODED, Classify
from vitcli.core.spec import TASKS
from vitcli.plugin import load_target
from vitcli.runner.errors import ConfigError, DivergedError, InputError, InUseError, UserError
from vitcli.runner.evaluate.predict import classifier_of_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.folder import RunDir, steps
from vitcli.runner.run.record import read_record
from vitcli.runner.train import trainer as training
from vitcli.runner.train.events import EpochDone, Event
from vitcli.runner.train.signals import STOPPING, StopFlag


@pytest.mark.parametrize("number", often(STOPPING, signal.SIGINT))
def test_a_signal_saves_prints_how_to_continue_and_sets_the_exit_code(
    tiny, here, environment, number
):
    command = [sys.executable, "-m", "vitcli", "train", tiny, "-o", "stopped", "--epochs", "2000"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_checkpoint(process, here / "stopped")
    process.send_signal(number)
    _, talk = process.communicate(timeout=HANG)
    assert process.returncode == 128 + number
    assert "vitcli train --resume" in talk
    assert "Traceback" not in talk
    record = read_record(here / "stopped")
    assert (record.state, record.step) == ("interrupted", record.folder.last_step())


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), number)
        assert stop.number is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


class Killed(BaseException):
    """An exception that no part of a training handles, like SIGKILL."""


@pytest.mark.shipped_save_policy
def test_with_the_default_save_policy_a_kill_costs_steps_and_no_bits(tiny, here, calm):
    """Short epochs share a checkpoint, so more than one epoch may be lost."""
    assert training.SAVE_SHARE < 0.1

    def die(event: Event) -> None:
        if isinstance(event, EpochDone) and event.record["epoch"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(tiny, "killed", on_event=die)
    killed = RunDir(here / "killed")
    assert read_record(killed).status == "running"
    assert steps(killed.checkpoints)[0] in (5, 10, 15)
    train(tiny, "killed", resume=True)
    assert_same_run(calm, killed)


def test_a_finished_run_is_not_changed_and_has_one_configuration(calm):
    before = files(calm.path)
    assert "warning" not in read_record(calm).result
    assert not trains(continue_run, calm)
    assert files(calm.path) == before
    with pytest.raises(ConfigError, match=r"another configuration \(train\.epochs\)"):
        train(calm.path / "config.yaml", "calm", {"train.epochs": 5})


def test_other_pictures_and_a_start_from_scratch_are_refused(tiny, here, pictures):
    with stops_after(6):
        train(tiny, "stopped")
    with pytest.raises(ConfigError, match="vitcli train --resume"):
        train(tiny, "stopped")
    next((pictures / "train" / "dark").iterdir()).unlink()
    with pytest.raises(InputError, match="other images"):
        train(tiny, "stopped", resume=True)


def test_a_folder_in_use_is_refused_and_not_changed(tiny, here):
    held = RunDir(here / "held")
    with held.lock(), pytest.raises(InUseError, match="another process"):
        train(tiny, "held")
    assert not held.exists
    (held.path / "code").mkdir()  # as of a training that has no config.yaml yet
    (held.path / "code" / "part.py").touch()
    with held.lock(), pytest.raises(InUseError, match="another process"):
        train(tiny, "held")


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_an_edited_configuration_is_refused_or_marked(stopped, has_checkpoint):
    if not has_checkpoint:
        shutil.rmtree(stopped.checkpoints)
        stopped.checkpoints.mkdir()
    step, config = stopped.last_step(), stopped.path / "config.yaml"
    config.write_text(config.read_text().replace("weight_decay: 0.05", "weight_decay: 0.01", 1))
    with pytest.raises(ConfigError, match=r"config\.yaml \w{8} -> \w{8}"):
        continue_run(stopped)
    marked = continue_run(stopped, allow=True)
    assert not marked.result["exact"]
    assert f"from step {step}: config.yaml" in marked.inexact[0]
    assert not trains(continue_run, stopped)


@pytest.mark.parametrize(
    ("name", "is_continued", "is_measured"),
    [
        ("config.yaml", False, False),
        ("meta.json", False, True),
        ("metrics.jsonl", False, True),
        *((name, True, True) for name in ("status.json", "result.json")),
    ],
)
def test_of_a_damaged_run_what_is_still_known_is_used(
    stopped, pictures, name, is_continued, is_measured
):
    (stopped.path / name).write_text("{\n")
    picture = str(next((pictures / "test" / "dark").iterdir()))
    uses = evaluate_run, lambda name: classifier_of_run(name)(picture)
    for use in uses:
        with nullcontext() if is_measured else pytest.raises(UserError, match=name):
            use("stopped")
    with nullcontext() if is_continued else pytest.raises(UserError, match=name):
        assert continue_run(stopped).problems == ()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("status.json", lambda text, content=content: content) for content in ("", "[1]")),
        *(("metrics.jsonl", lambda text, size=size: text[:size]) for size in (0, -9)),
        ("config.yaml", lambda text: text.replace("weight_decay: 0.05", "weight_decay: 0.01", 1)),
        ("meta.json", lambda text: text[:-9]),
    ],
)
def test_a_damaged_run_is_not_called_finished_and_the_advice_trains_it_again(
    copy_of_run, name, damage
):
    calm = RunDir(copy_of_run(Path("calm"), {"train.epochs": 1}))
    path = calm.path / name
    path.write_text(damage(path.read_text()))
    talk = commands.said(4, "train", "--resume", "calm")
    assert f"calm/{name}: " in talk
    commands.typed(talk.partition("start over: vitcli ")[2])
    assert read_record(calm).state == "finished"


def test_divergence_keeps_the_last_finite_checkpoint(tiny, here, monkeypatch):
    original = Classify.batches

    def poisoned(self, data, epoch, first_batch=0):
        for batch in original(self, data, epoch, first_batch):
            if epoch == 2:
                batch["images"][0, 0, 0, 0] = float("nan")
            yield batch

    monkeypatch.setattr(Classify, "batches", poisoned)
    with pytest.raises(DivergedError, match="not finite"):
        train(tiny, "diverged")
    record = read_record(here / "diverged")
    assert record.state == "diverged"
    assert record.parameters > 1000
    assert record.folder.last_step() == 10
    assert all(tensor.isfinite().all() for tensor in final_tensors(record.folder).values())


def test_a_valid_checkpoint_of_another_model_is_refused(stopped, copy_of_run, here):
    """With another number of heads, all tensors have the same shapes."""
    other = RunDir(copy_of_run(here / "other", {"model.num_heads": 4, "train.epochs": 1}))
    shutil.rmtree(stopped.checkpoints)
    shutil.copytree(other.checkpoints, stopped.checkpoints)
    for attempt in (lambda: continue_run(stopped), lambda: load_model("stopped")):
        with pytest.raises(InputError, match="another model"):
            attempt()


@pytest.mark.shipped_save_policy
def test_a_stop_leaves_a_checkpoint_a_status_and_no_result(tiny, calm):
    record = train(tiny, "runs/run", {"train.eval_every": 3}, stop_after=2)
    run = record.folder
    assert (record.state, record.step, bool(record.reason)) == ("interrupted", 10, True)
    assert steps(run.checkpoints)[0] == 10
    assert not {"result.json", "predictions.npz"} & {path.name for path in run.path.iterdir()}
    assert not any("test_accuracy" in line for line in record.metrics)
    rates = [[line["lr"] for line in read_record(each).metrics[:2]] for each in (run, calm)]
    assert rates[0] == rates[1], "the schedule is that of the whole training"
    assert run.spec().train.epochs == 4
    (row,) = commands.document("runs", "ls")["runs"]
    assert (row["state"], row["epochs"], row["epochs_planned"]) == ("interrupted", 2, 4)
    measured = commands.document("eval", "run")
    assert row["test_score"] == record.reached["test_accuracy"] == measured["test_accuracy"]
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
    _, out, talk = commands.vitcli("train", tiny, *words)
    assert "vitcli train --resume run" in out + talk
    found = commands.document("train", "--resume", "run", "--stop-after", 2)
    assert (found["state"], found["epochs"], found["epochs_planned"]) == ("interrupted", 2, 4)
    assert {"test_accuracy", "train_loss", "config_hash", "train_flops", "hardware"} <= found.keys()
    before = files(here / "run")
    for number in ((1,), (2,), (2, "--dry-run")):
        talk = commands.said(2, "train", "--resume", "run", "--stop-after", *number)
        assert "already has 2 of 4 epochs" in talk
    assert files(here / "run") == before


TRIALS = Path(__file__).parents[3] / "experiments/results/trials"
WARNING = "the loss has exploded: its mean over an epoch is above 3 times that of equal guesses"


@contextmanager
def loss_above(amount: float) -> Iterator[None]:
    original = Classify.losses

    def losses(self, batch):
        found = original(self, batch)
        return found | {"loss": found["loss"] + amount}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classify, "losses", losses)
        yield


def test_a_loss_that_explodes_is_told_once_and_kept(tiny, here):
    with loss_above(1e6):
        _, out, talk = commands.vitcli("train", tiny, "-o", "run", "--epochs", 2)
    warning = read_record(RunDir(here / "run")).result["warning"]
    assert warning.startswith(f"{WARNING} (0.69)")
    assert f"warning: {warning}" in " ".join(out.split())
    assert " ".join(talk.split()).count(f"warning: {warning}") == 1


def test_a_resumed_training_keeps_what_was_told_before(tiny, here):
    with loss_above(3), stops_after(6):
        train(tiny, "run")
    assert continue_run(RunDir(here / "run")).result["warning"].startswith(WARNING)


def test_no_committed_trial_would_be_told():
    """All have ten classes. The rule begins at twice the largest loss or above."""
    lines = [line for path in TRIALS.glob("*/*.jsonl") for line in path.read_text().splitlines()]
    results = [json.loads(line)["record"]["result"] for line in lines]
    shares = [each["train_loss"] / math.log(10) for each in results if each.get("train_loss")]
    assert len(shares) > 300
    assert max(shares) < EXPLODED / 2


def test_a_loss_with_other_parts_is_not_compared_with_guessing():
    for name, row in TASKS.items():
        task = load_target(row.build)
        if isinstance(task, type) and issubclass(task, Classify):
            assert task.minimises_cross_entropy == (row.reports == ("loss", "accuracy")), name
