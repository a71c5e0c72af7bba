"""The figures of docs/ are legible."""

from functools import partial
from pathlib import Path

from tests.figure_checks import faults
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
