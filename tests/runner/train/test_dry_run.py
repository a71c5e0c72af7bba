"""`vitcli train --dry-run`: the plan of a training in numbers."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.commands import document, printed, said
from tests.task_table import TinyTask
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import describe_spec
from vitcli.runner.train import dry_run
from vitcli.runner.train.prepare import Request


@pytest.fixture
def clock(monkeypatch) -> itertools.count:
    """A second passes between two looks at the clock."""
    seconds = itertools.count()
    looks = SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    monkeypatch.setattr(dry_run, "time", looks)
    return seconds


def seconds_of(path: Path, changes: dict[str, Any] | None = None) -> dict[str, float]:
    return dry_run.dry_run(load_experiment(str(path), changes), Request()).seconds


@pytest.mark.parametrize(
    ("changes", "steps", "evaluated"),
    [
        ({}, 4 * 5, 4 * 24),
        ({"train.limit_batches": 2}, 4 * 2, 4 * 24),
        ({"train.eval_every": 3}, 4 * 5, 2 * 24),
        ({"data.val_split": 16}, 4 * 4, 4 * 16 + 24),
        ({"train.epochs": 0}, 0, 0),
    ],
)
def test_a_step_and_an_evaluation_are_timed_on_the_images(tiny, clock, changes, steps, evaluated):
    """Nothing is timed twice: a step takes a second, and so does the evaluation of 24 images."""
    wanted = {"start": 3, "train": steps, "evaluate": evaluated / 24}
    assert seconds_of(tiny, changes) == pytest.approx(wanted)


def test_a_slow_step_is_taken_once(tiny, clock, monkeypatch):
    monkeypatch.setattr(dry_run, "SLOW_SECONDS", 0.5)
    assert seconds_of(tiny)["train"] == 20
    assert next(clock) == 6, "three steps and an evaluation less"


@pytest.mark.plugin("distil")
def test_each_copy_that_a_teacher_labels_takes_time(here, clock):
    task = TinyTask("distil", here)
    changes = {"train.epochs": 3, "data.augment.copies": 2, "data.augment.flip": "random"}
    assert seconds_of(task.path, changes)["start"] == 3 + 1


def test_it_says_what_a_training_takes_and_writes_nothing(tiny, here):
    tiny.write_text(f"{tiny.read_text()}pretrain: {{train: {{epochs: 3, batch_size: 16}}}}\n")
    before = {*here.rglob("*")}
    words = ("train", tiny, "--dry-run")
    text, plan = printed(*words), document(*words)
    assert {*here.rglob("*")} == before
    for part in ("pre-train", "start", "train", "evaluate"):
        assert f" to {part}" in text
    assert 0 < plan["estimated_startup_seconds"] < plan["estimated_seconds"]
    said(0, "train", tiny, "-o", "run")
    result = document("runs", "show", "run")["result"]
    for name in ("parameters", "train_flops", "pretrain_flops"):
        assert plan[name] == result[name], name
    assert plan["forward_flops_per_image"] == result["forward_flops"]
    (here / "run").rename("elsewhere")
    assert " to pre-train" not in printed(*words), "it is trained already"


def test_without_the_images_there_is_no_time(here):
    plan = document("train", "cifar10-tiny", "--epochs", 3, "--data", "mnist", "--dry-run")
    assert (plan["estimated_seconds"], plan["num_train"]) == (None, 60_000)
    assert "vitcli data get mnist" in plan["notes"][0]
    assert (plan["config"]["train"]["epochs"], plan["config"]["data"]["name"]) == (3, "mnist")
    words = ("train", "cifar10-tiny", "--device", "cpu", "--dry-run")
    said(4, *words, "--data-dir", "nowhere")
    said(2, *words, "--batch-size", 60_000)
    said(2, *words, "--precision", "fp16")
    assert not [*here.iterdir()]


def test_accumulation_and_recomputing_save_memory():
    plain, parts, recomputed = (
        dry_run.memory_bytes(describe_spec(load_experiment("cifar10-tiny", changes).spec))
        for changes in ({}, {"train.accumulate": 4}, {"train.grad_checkpointing": True})
    )
    assert parts < 0.4 * plain
    assert recomputed < 0.6 * plain
