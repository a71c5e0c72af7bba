"""The gate of masked autoencoders, and its committed result (experiments/gates/mae.py)."""

import pytest

from experiments.gates.mae import RESULT, SETTINGS, Setting, measure, passes
from tests.gate_results import read_gate


@pytest.mark.ci
def test_shapes_are_reconstructed_and_the_encoder_knows_more_than_before(here):
    found = measure("shapes")
    assert passes(found), found


@pytest.mark.slow
@pytest.mark.data
def test_photos_are_reconstructed_and_the_encoder_knows_more_than_before(real_places):
    found = measure("cifar10")
    assert passes(found), found


def test_without_a_training_the_gate_is_closed(here, monkeypatch):
    """The control: the gate measures the training and not the model."""
    changes = SETTINGS["shapes"].changes | {"train.epochs": 0}
    untrained = Setting(num_train=200, num_test=200, changes=changes)
    monkeypatch.setitem(SETTINGS, "shapes", untrained)
    found = measure("shapes")
    assert found["probe_before"] == found["probe_after"]
    assert found["masked_mse"] > found["nearest_mse"]
    assert not passes(found)


def test_the_committed_result_passes_with_three_seeds_in_all_settings():
    settings = read_gate(RESULT)["settings"]
    assert settings.keys() == SETTINGS.keys()
    for name, found in settings.items():
        assert found["changes"] == SETTINGS[name].changes
        assert [row["seed"] for row in found["rows"]] == [0, 1, 2]
        assert all(map(passes, found["rows"]))
