"""`vitcli eval --zero-shot`: names of classes alone."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli import commands
from tests.cli.commands import said

document = partial(commands.document, "eval")


@pytest.fixture
def captioned(copy_of_run) -> str:
    changes = {"task.name": "clip", "data.augment.mixup": 0, "train.precision": "fp32"}
    copy_of_run(Path("run"), changes | {"optim.lr": 0.01, "train.epochs": 3})
    return "run"


def test_zero_shot_has_the_accuracy_of_the_training(captioned):
    found = document(captioned, "--zero-shot")
    stored = json.loads(Path("run/result.json").read_text())
    assert found["zero_shot_accuracy"] == pytest.approx(stored["test_zero_shot_accuracy"])
    assert sum(row["num_assigned"] for row in found["classes"]) == found["num_labelled"] == 24


def test_classes_are_given_by_name_alone(captioned):
    words = (captioned, "--zero-shot", "--classes")
    dark, other, bright = document(*words, " Dark ,photo,bright")["classes"]
    assert (dark["name"], dark["num_images"], bright["num_images"]) == ("Dark", 12, 12)
    assert (other["num_images"], other["accuracy"]) == (None, None)
    found = document(*words, "photo,dark")
    assert (found["num_images"], found["num_labelled"]) == (24, 12)
    said(2, "eval", *words, "photo,image", "--min-accuracy", 0.5)
