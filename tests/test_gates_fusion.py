"""The gates of the task fusion: the committed results, and (slow) the trainings again."""

import pytest

from experiments.gates.fusion import CASES, RESULTS, failures, measure
from tests.gate_results import read_gate

GOOD = {
    "fusion": {"accuracy": 0.8, "image_accuracy": 0.6, "sound_accuracy": 0.62},
    "image": {"accuracy": 0.61},
    "sound": {"accuracy": 0.63},
    "shuffled": {"accuracy": 0.6},
    "contrast": {"retrieval": 0.9},
}


def test_the_committed_results_pass():
    stored = read_gate(RESULTS / "fusion.json")
    assert stored["results"].keys() == CASES.keys()
    for trials in stored["results"].values():
        assert [trial["seed"] for trial in trials] == [0, 1, 2]
    assert failures(stored["results"]) == []


@pytest.mark.parametrize(
    ("case", "changes", "said"),
    [
        ("fusion", {"accuracy": 0.72}, "fusion gains 0.090 over 0.630"),
        ("fusion", {"sound_accuracy": 0.71}, "over 0.710"),
        ("fusion", {"image_accuracy": 0.57}, "loses 0.040 to images alone"),
        ("image", {"accuracy": 0.45}, "images alone reach 0.450"),
        ("sound", {"accuracy": 0.95}, "sounds alone reach 0.950"),
        ("shuffled", {"accuracy": 0.57}, "by -0.040"),
        ("shuffled", {"accuracy": 0.65}, "by 0.040"),
        ("contrast", {"retrieval": 0.8}, "4.8 times chance"),
    ],
)
def test_the_gates_can_fail(case, changes, said):
    """Each gate refuses a result that lacks one of the properties."""
    good = {name: [found] for name, found in GOOD.items()}
    assert failures(good) == []
    found = failures(good | {case: [GOOD[case] | changes]})
    assert any(said in text for text in found)


@pytest.mark.slow
def test_the_trainings_pass():
    assert failures({case: [measure(case)] for case in CASES}) == []
