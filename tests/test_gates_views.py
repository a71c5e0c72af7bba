"""The gates of the tasks on views: the committed results, and (slow) the trainings again."""

import pytest

from experiments.gates.views import CASES, RESULTS, measure, passes
from tests.gate_results import read_gate

EACH = [(task, case) for task, cases in CASES.items() for case in cases]


@pytest.mark.parametrize("task", CASES)
def test_the_committed_results_pass(task):
    stored = read_gate(RESULTS / f"{task}.json")
    assert stored["results"].keys() == CASES[task].keys()
    for case, found in stored["results"].items():
        assert [each["seed"] for each in found] == [0, 1, 2]
        assert all(passes(task, case, each) for each in found)


@pytest.mark.parametrize(
    ("task", "case", "changes"),
    [
        ("dino", "plain", {"knn_after": 0.6}),
        ("dino", "plain", {"alarms": ["collapse: nearly uniform"]}),
        ("dino", "mismatched", {"knn_after": 0.46}),
        ("dino", "mismatched", {"loss": 4.75}),
        ("dino", "mismatched", {"loss": 4.9}),
        ("dino", "no_centring", {"alarms": []}),
        ("dino", "no_sharpening", {"alarms": ["collapse: the same peak"]}),
        ("lejepa", "plain", {"knn_after": 0.6}),
        ("lejepa", "mismatched", {"knn_after": 0.46}),
        ("lejepa", "no_regulariser", {"alarms": []}),
    ],
)
def test_the_gates_can_fail(task, case, changes):
    """Each gate refuses a training that lacks one of the properties."""
    alarm = CASES[task][case].alarm
    good = {
        "knn_before": 0.45,
        "knn_after": 0.45 if CASES[task][case].mismatched else 0.8,
        "loss": 4.85,
        "alarms": [f"collapse: {alarm}"] if alarm else [],
    }
    assert passes(task, case, good)
    assert not passes(task, case, good | changes)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "case"), EACH)
def test_a_training_passes(task, case):
    found = measure(task, case)
    assert passes(task, case, found), found
