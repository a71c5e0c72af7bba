"""`vitcli eval`: scores in every format, probes of frozen features, names of classes alone."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.cli import commands
from tests.cli.commands import said
from vitcli.core.data.source import Images
from vitcli.core.metrics.classification import logits_and_labels
from vitcli.core.metrics.knn import knn_logits
from vitcli.runner.data.load import load_data
from vitcli.runner.evaluate.probe import probe_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.build import new_module
from vitcli.runner.run.folder import RunDir

document = partial(commands.document, "eval")


@pytest.mark.usefixtures("half_are_flipped")
def test_min_accuracy_is_exit_6(run):
    said(0, "eval", run, "--min-accuracy", 0.0, "--predictions", "p.npz")
    assert Path("p.npz").is_file()
    assert document(run)["test_accuracy"] < 1
    said(6, "eval", run, "--min-accuracy", 1.0)


def test_a_model_that_is_no_better_than_the_largest_class_is_told_so(tiny, pictures):
    """The names of the test folders are exchanged, and one class is three times the other."""
    for path in [*(pictures / "test" / "dark").glob("?.png")][:8]:
        path.unlink()
    for old, new in (("dark", "x"), ("bright", "dark"), ("x", "bright")):
        (pictures / "test" / old).rename(pictures / "test" / new)
    assert "no better than always answering dark" in said(0, "train", tiny, "-o", "run")
    found = document("run")
    assert "no better than always answering dark" in found["notes"][0]
    assert found["balanced_accuracy"] == sum(row["accuracy"] for row in found["classes"]) / 2
    assert (found["largest_class"], found["largest_class_share"]) == ("dark", 0.75)


def test_a_limited_evaluation_sees_every_class(run):
    spec = RunDir(Path(run)).spec()
    spec = spec.replace(train=spec.train.replace(limit_batches=1))
    labels = torch.arange(10).repeat_interleave(200)
    images = Images(torch.zeros(2000, 3, 8, 8, dtype=torch.uint8), labels)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    assert logits_and_labels(model, images, spec)[1].bincount().tolist() == [50] * 10


@pytest.mark.parametrize("labels", [None, 12])
def test_a_probe_reads_the_features_of_the_trained_and_the_initial_encoder(
    run, monkeypatch, labels
):
    seen = []

    def spy(*values):
        seen.append(values)
        return knn_logits(*values)

    monkeypatch.setattr("vitcli.runner.evaluate.probe.knn_logits", spy)
    found = probe_run(run, "knn", labels=labels)
    spec = RunDir(Path(run)).spec()
    data = load_data(spec.data.replace(labels=labels))
    models = load_model(run), new_module(spec).eval()
    for model, values, score in zip(models, seen, (found.trained, found.untrained), strict=True):
        with torch.no_grad():
            train, test = (
                model.features(data.normalize(images.pixels)) for images in (data.train, data.test)
            )
        assert_close(values[0], train)
        assert_close(values[2], test)
        assert values[1].equal(data.train.labels)
        hits = knn_logits(train, data.train.labels, test, 2).argmax(1) == data.test.labels
        assert score.accuracy == pytest.approx(hits.double().mean().item())
    assert not torch.allclose(seen[0][0], seen[1][0], atol=0.1), "the training moved the features"
    assert found.num_labels == len(data.train) == (labels or 80)
    assert (found.num_images, found.num_features) == (24, 16)


def test_a_probe_takes_a_least_accuracy(run):
    reached = probe_run(run, "linear", labels=2).trained.accuracy
    words = ("eval", run, "--probe", "linear", "--labels", 2, "--min-accuracy")
    said(0, *words, reached)
    said(0 if reached == 1 else 6, *words, 1)


def test_a_probe_can_measure_the_validation_images(copy_of_run):
    copy_of_run(Path("run"), {"train.epochs": 1, "data.val_split": 10})
    found = document("run", "--probe", "knn", "--split", "val")
    assert (found["num_images"], found["num_labels"], found["split"]) == (10, 70, "val")


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
