"""Training with captions of one's own pictures, from captions.csv to retrieval."""

import csv
from pathlib import Path

import pytest

from tests.runner.train.conftest import train
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.weights import load_module

CAPTIONS = {"task.name": "clip", "task.captions": "folder", "data.augment.mixup": 0.0}


def describe(pictures: Path) -> None:
    """Write a caption for each picture of the two classes."""
    words = {"dark": "a gloomy night", "bright": "a sunny day"}
    with (pictures / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        for path in sorted(pictures.glob("*/*/*.png")):
            rows.writerow([path.relative_to(pictures), words[path.parent.name]])


def test_captions_are_retrieved_and_the_vocabulary_is_kept(tiny, pictures):
    describe(pictures)
    changes = {"optim.lr": 0.01, "train.epochs": 12, "train.ema_decay": None}
    changes |= {"train.precision": "fp32", "model.drop_path": 0.0, "task.vocabulary_size": 8}
    done = train(tiny, "run", CAPTIONS | changes)
    text = load_module(done.run, done.run.spec()).text
    assert text.words() == ["a", "day", "gloomy", "night"], "the most frequent, then the first"
    assert done.result["test_image_to_text_r1"] > 0.85
    assert done.result["test_text_to_image_r1"] > 0.85
    assert done.result["test_zero_shot_accuracy"] < 0.9, "no caption has the names of the classes"


def test_a_folder_without_captions_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"task.captions"):
        train(tiny, "run", CAPTIONS)
    assert not Path("run").exists()
