"""Training with captions of one's own pictures, from captions.csv to retrieval."""

import csv
from pathlib import Path

import pytest

from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

CAPTIONS = {"task.name": "clip", "task.captions": "folder", "data.augment.mixup": 0.0}


def describe(pictures: Path) -> None:
    """Write a caption for each picture of the two classes."""
    words = {"dark": "a gloomy night", "bright": "a sunny day"}
    with (pictures / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        for path in sorted(pictures.glob("*/*/*.png")):
            rows.writerow([path.relative_to(pictures), words[path.parent.name]])


def test_it_resumes_to_the_same_bits_learns_and_keeps_its_vocabulary(tiny, pictures, monkeypatch):
    describe(pictures)
    changes = {"optim.lr": 0.01, "train.epochs": 12, "train.ema_decay": None}
    changes |= {"train.precision": "fp32", "model.drop_path": 0.0, "task.vocabulary_size": 8}
    experiment = load_experiment(str(tiny), CAPTIONS | changes)
    calm = start(experiment, Request(output=Path("calm")))
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    again = start(experiment, Request(output=Path("stopped"), resume=True))
    measures = ("test_zero_shot_accuracy", "test_image_to_text_r1", "test_text_to_image_r1")
    assert_same_run(calm.run, again.run, measures=measures)
    text = load_module(RunDir(Path("stopped")), calm.run.spec()).text
    assert text.words() == ["a", "day", "gloomy", "night"], "the most frequent, then the first"
    assert calm.result["test_image_to_text_r1"] > 0.85
    assert calm.result["test_text_to_image_r1"] > 0.85
    assert calm.result["test_zero_shot_accuracy"] < 0.9, "no caption has the names of the classes"


def test_a_folder_without_captions_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"task.captions"):
        start(load_experiment(str(tiny), CAPTIONS), Request(output=Path("run")))
    assert not Path("run").exists()
