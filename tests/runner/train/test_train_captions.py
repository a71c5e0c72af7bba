"""Training with captions of one's own pictures, from captions.csv to retrieval."""

import csv
import json
from pathlib import Path

import pytest
import torch

from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

CAPTIONS = {"task.name": "clip", "task.captions": "folder", "data.augment.mixup": 0.0}


def describe(pictures: Path, suffix: str = "") -> None:
    """Write a caption for each picture of the two classes."""
    words = {"dark": "a gloomy night", "bright": "a sunny day"}
    with (pictures / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        for path in sorted(pictures.glob("*/*/*.png")):
            text = f"{words[path.parent.name]}{suffix}"
            rows.writerow([path.relative_to(pictures), text])


@pytest.fixture
def described(pictures, tiny):
    describe(pictures)
    return tiny


def test_it_resumes_to_the_same_bits_and_keeps_its_vocabulary(described, monkeypatch):
    experiment = load_experiment(str(described), CAPTIONS)
    calm = start(experiment, Request(output=Path("calm")))
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    again = start(experiment, Request(output=Path("stopped"), resume=True))
    measures = ("test_zero_shot_accuracy", "test_image_to_text_r1", "test_text_to_image_r1")
    assert_same_run(calm.run, again.run, measures=measures)
    text = load_module(RunDir(Path("stopped")), calm.run.spec()).text
    assert text.words() == ["a", "day", "gloomy", "night", "sunny"]


def test_captions_are_retrieved_after_the_training(described):
    changes = {"optim.lr": 0.01, "train.epochs": 12, "train.ema_decay": None}
    fixed = {"train.precision": "fp32", "model.drop_path": 0.0, "model.proj_drop": 0.0}
    result = start(
        load_experiment(str(described), CAPTIONS | changes | fixed), Request(output=Path("run"))
    ).result
    assert result["test_image_to_text_r1"] > 0.85
    assert result["test_text_to_image_r1"] > 0.85
    assert result["test_image_to_text_r5"] == 1
    assert result["test_zero_shot_accuracy"] < 0.9, "no caption has the names of the classes"


def test_other_captions_are_other_data(described, pictures, monkeypatch):
    experiment = load_experiment(str(described), CAPTIONS)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("run")))
    describe(pictures, suffix=" again")
    with pytest.raises(Exception, match="was trained on"):
        start(experiment, Request(output=Path("run"), resume=True))


def test_a_folder_without_captions_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"task.captions: the folder has no captions.csv"):
        start(load_experiment(str(tiny), CAPTIONS), Request(output=Path("run")))
    assert not Path("run").exists()


def test_the_vocabulary_is_limited(described):
    changes = {"task.vocabulary_size": 8, "train.epochs": 1}
    run = start(load_experiment(str(described), CAPTIONS | changes), Request(output=Path("r"))).run
    text = load_module(run, run.spec()).text
    assert text.token_embed.weight.shape[0] == 8
    assert text.words() == ["a", "day", "gloomy", "night"], "the most frequent, then the first"
    assert json.loads(Path("r/result.json").read_text())["test_image_to_text_r1"] >= 0
    assert torch.equal(text.vocabulary[0, :2], torch.tensor([97, 0], dtype=torch.uint8))
