"""The gate of contrastive training, and its committed result (experiments/gates/clip.py)."""

import pytest
import torch

from experiments.gates.clip import CASES, RESULT, Case, failures, measure, shuffled_labels
from tests.gate_results import read_gate


@pytest.mark.slow
@pytest.mark.ci
def test_captions_teach_shapes(here):
    found = measure("shapes")
    assert not [*failures("shapes", found)], found


@pytest.mark.slow
def test_shuffled_captions_teach_no_shapes(here):
    found = measure("shapes-shuffled")
    assert not [*failures("shapes-shuffled", found)], found


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["templates", "shuffled"])
def test_captions_teach_photos_and_shuffled_captions_do_not(name, real_places):
    found = measure(name)
    assert not [*failures(name, found)], found


def test_without_a_training_the_gate_is_closed(here, monkeypatch):
    """The control: the gate measures the training and not the prompts."""
    changes = CASES["shapes"].changes
    untrained = Case(num_train=200, num_test=200, epochs=0, changes=changes)
    monkeypatch.setitem(CASES, "shapes", untrained)
    found = measure("shapes")
    assert any("held-out templates reach" in text for text in failures("shapes", found))


def test_shuffled_labels_are_independent_of_the_true_ones():
    labels = torch.arange(10).repeat_interleave(30)
    shuffled = shuffled_labels(labels, 0)
    counts = torch.bincount(labels * 10 + shuffled, minlength=100)
    assert counts.tolist() == [3] * 100
    assert not torch.equal(shuffled_labels(labels, 1), shuffled)


def test_the_committed_result_passes():
    result = read_gate(RESULT)
    assert result["results"].keys() == CASES.keys()
    for name, rows in result["results"].items():
        assert [row["seed"] for row in rows] == list(range(len(rows)))
        assert not [text for row in rows for text in failures(name, row)]
    for name in ("templates", "shuffled"):
        assert len(result["results"][name]) == 3
    assert result["failed"] == []
