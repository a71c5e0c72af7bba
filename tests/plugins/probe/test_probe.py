"""`vitcli eval --probe`: classifiers on frozen features."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cli import commands
from tests.cli.commands import said
from tests.runner.data.conftest import shoot
from tests.runner.train.conftest import train
from vitcli.core.metrics.knn import knn_logits
from vitcli.core.metrics.linear_probe import linear_probe
from vitcli.plugins.probe.probe import probe_run
from vitcli.runner.data.load import load_data
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.build import new_module
from vitcli.runner.run.folder import RunDir

document = partial(commands.document, "eval")


@pytest.mark.parametrize("labels", [None, 12])
def test_a_probe_reads_the_features_of_the_trained_and_the_initial_encoder(
    run, monkeypatch, labels
):
    seen = []

    def spy(*values):
        seen.append(values)
        return knn_logits(*values)

    monkeypatch.setattr("vitcli.plugins.probe.probe.knn_logits", spy)
    report, _ = probe_run(run, "knn", labels=labels)
    spec = RunDir(Path(run)).spec()
    data = load_data(spec.data.replace(labels=labels))
    models = load_model(run), new_module(spec).eval()
    for model, values, score in zip(models, seen, report.tables[0].rows, strict=True):
        with torch.no_grad():
            train, test = (
                model.features(data.normalize(images.pixels)) for images in (data.train, data.test)
            )
        assert_close(values[0], train)
        assert_close(values[2], test)
        assert values[1].equal(data.train.labels)
        hits = knn_logits(train, data.train.labels, test, 2).argmax(1) == data.test.labels
        assert score["accuracy"] == pytest.approx(hits.double().mean().item())
    assert not torch.allclose(seen[0][0], seen[1][0], atol=0.1), "the training moved the features"
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["num_labels"] == len(data.train) == (labels or 80)
    assert (facts["num_images"], facts["num_features"]) == (24, 16)


def test_a_probe_takes_a_least_accuracy(run):
    _, reached = probe_run(run, "linear", labels=2)
    words = ("eval", run, "--probe", "linear", "--labels", 2, "--min-accuracy")
    said(0, *words, reached)
    said(0 if reached == 1 else 6, *words, 1)


def test_no_probe_learns_a_copy_of_what_chooses_its_strength(tiny, copied, monkeypatch):
    train(tiny, "run", {"train.epochs": 0})
    chose = []

    def spy(*values, held_out, **options):
        chose.append(held_out)
        return linear_probe(*values, held_out=held_out, **options)

    monkeypatch.setattr("vitcli.plugins.probe.probe.linear_probe", spy)
    probe_run("run", "linear")
    names = load_data(RunDir(Path("run")).spec().data).train.names
    for held_out in chose:
        held = [name.replace(" again", "") for name in np.array(names)[held_out].tolist()]
        assert len(held) == 2 * len({*held}) > 0
    assert len(chose) == 2
    shoot(copied / "train", {"Still": (20,)}, "noise")
    shoot(copied / "test", {"Still": (1,)}, "copy")
    train(tiny, "still", {"train.epochs": 0})
    assert "copies are in one fold, except some in 'Still'" in str(probe_run("still", "linear"))


def test_a_probe_can_measure_the_validation_images(copy_of_run):
    copy_of_run(Path("run"), {"train.epochs": 1, "data.val_split": 10})
    found = document("run", "--probe", "knn", "--split", "val")
    assert (found["num_images"], found["num_labels"], found["split"]) == (10, 70, "val")
