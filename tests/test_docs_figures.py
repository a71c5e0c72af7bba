"""The figures of docs/ are legible, and the compute of a point is that of all its trainings."""

from functools import partial
from pathlib import Path

import pytest

from tests.figure_checks import faults
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "results" / "study-pretraining.json"


def test_the_figure_is_legible(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    from figures import differences

    found = dict.fromkeys((100, 1000, 50000), compare(read_document(STUDY.read_text())))
    draw = partial(differences, found, "labelled images", "Pre-training")
    assert faults(draw) == []
    (axes,) = draw().axes
    assert {text.get_text() for text in axes.texts} == {"mae", "dino", "lejepa", "ssat", "clip"}
    assert len(axes.collections) == 3 * 5


def test_accuracy_against_compute_is_legible_and_keeps_last_and_best_epoch_apart(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    from accuracy_points import accuracy_figure, points

    assert faults(accuracy_figure) == []
    (axes,) = accuracy_figure().axes
    hollow = [line.get_markerfacecolor() == "white" for line in axes.lines]
    assert hollow == [point.epoch == "best" for point in points()]
    assert not any(each and point.is_ours for each, point in zip(hollow, points(), strict=True))


def test_the_compute_of_a_teacher_is_counted(monkeypatch):
    """The paper's network took 0.36 PFLOP in 9.9 epochs; the experiment has 16."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    from accuracy_points import our_point, pflop

    assert pflop("cifar10-convnet") == pytest.approx(0.36 * 16 / 9.9, rel=0.03)
    alone = our_point("cifar10-tiny-fast", ["cifar10-tiny-fast"], "hybrid")
    taught = our_point("cifar10-tiny-fast", ["cifar10-convnet", "cifar10-tiny-fast"], "hybrid")
    assert (alone.name, taught.name) == ("cifar10-tiny-fast", "cifar10-tiny-fast")
    teacher = pflop("cifar10-convnet")
    epochs = load_experiment("cifar10-tiny-fast").spec.train.epochs
    assert taught.pflop == pytest.approx(alone.pflop + teacher * (1 + epochs / (3 * 16)))
    copies = load_experiment("speedrun-94").spec.data.augment.copies
    labels = pflop("speedrun-94", "cifar10-convnet") - pflop("speedrun-94")
    assert labels == pytest.approx(teacher * copies / (3 * 16))
