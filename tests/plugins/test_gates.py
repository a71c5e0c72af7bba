"""The committed results of gates pass, and each gate can fail."""

from dataclasses import replace

import pytest

from experiments.gates import fusion, mae, views
from tests.test_gates import read


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        *[("fusion", {"accuracy": 0.72}), ("fusion", {"image_accuracy": 0.57})],
        *[("image", {"accuracy": 0.45}), ("sound", {"accuracy": 0.95})],
        *[("shuffled", {"accuracy": 0.57}), ("shuffled", {"accuracy": 0.7})],
        *[("contrast", {"retrieval": 0.8}), ("plain", {"knn_after": 0.6})],
        *[("plain", {"alarms": ["collapse: nearly uniform"]}), ("no_centring", {"alarms": []})],
        *[("mismatched", {"knn_after": 0.56}), ("mismatched", {"loss": 4.75})],
    ],
)
def test_the_gates_of_fusion_and_views_can_fail(case, changes):
    if case in views.CASES["dino"]:
        (trial, *_) = read(views.RESULTS / "dino.json")["results"][case]
        assert views.passes("dino", case, trial)
        assert not views.passes("dino", case, trial | changes)
    else:
        stored = read(fusion.RESULTS / "fusion.json")["results"]
        assert fusion.failures(stored) == []
        assert fusion.failures(stored | {case: [trial | changes for trial in stored[case]]}) != []


@pytest.mark.ci
def test_shapes_are_reconstructed_and_the_encoder_knows_more_than_before(here, monkeypatch):
    """Half of the images of the committed result pass by far, too."""
    half = replace(mae.SETTINGS["shapes"], num_train=1000, num_test=500)
    monkeypatch.setitem(mae.SETTINGS, "shapes", half)
    assert mae.passes(found := mae.measure("shapes")), found
