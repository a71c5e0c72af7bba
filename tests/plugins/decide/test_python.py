"""`vitcli.decide` of numbers and of own training functions: what it refuses, and what it keeps."""

import functools
import math
from collections import deque

import numpy as np
import pytest
import torch

import vitcli
from tests.test_api import refusal
from vitcli.plugins.decide import comparison

DIFFERENCES = [0.8, 1.1, 0.9, 1.3, 0.7]
SCORES = [70.1, 70.3, 70.2, 70.6, 70.0]


@pytest.mark.parametrize(
    "given",
    [
        tuple(DIFFERENCES),
        np.array(DIFFERENCES),
        torch.tensor(DIFFERENCES, dtype=torch.float64),
        [torch.tensor(value, dtype=torch.float64) for value in DIFFERENCES],
        (value for value in DIFFERENCES),
        dict(enumerate(DIFFERENCES)).values(),
        deque(DIFFERENCES),
    ],
    ids=lambda value: type(value).__name__,
)
def test_differences_may_come_in_any_list(given):
    assert vitcli.decide(given, margin=np.float64(9)) == vitcli.decide(DIFFERENCES, margin=9)


@pytest.mark.parametrize(
    ("given", "choices", "message"),
    [
        (SCORES, {"against": [69.0] * 5}, "leave out 'against'"),
        (DIFFERENCES, {"folder": "mine"}, "'folder'"),
        ({*DIFFERENCES}, {}, "neither a number, text or list"),
        (np.ones((5, 2)), {}, "[1.0, 1.0]: Input should be a valid number"),
        (["a", "b"], {}, "'a': Input should be a valid number"),
        ([1j], {}, "1j"),
        ([1.0, None], {}, "None: Input should be a valid number"),
        ([1.0, math.nan], {}, "nan: Input should be a finite number"),
        ([2e-10, 0.0, 1e-10, 3e-10], {}, "smaller unit"),
        (DIFFERENCES, {"max_seeds": 4}, "max_seeds 4: Input should be greater than 4"),
        (DIFFERENCES, {"max_seeds": 65}, "max_seeds 65: Input should be less than or equal to 64"),
        (DIFFERENCES, {"max_seeds": 8.5}, "max_seeds 8.5"),
        (DIFFERENCES, {"margin": "2"}, "margin '2'"),
        (DIFFERENCES, {"higher_is_better": "no"}, "higher_is_better 'no'"),
        (DIFFERENCES, {"epochs": 3}, "epochs 3"),
        ({"optim.lr": 0.1}, {"against": "quickstart", "higher_is_better": True}, "higher_is"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_numbers_and_options_that_mean_something_else_are_refused(here, given, choices, message):
    assert message in refusal(vitcli.decide, given, **choices)
    assert not [*here.iterdir()]


def test_the_folder_of_the_data_may_be_a_text(here, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(
        comparison,
        "compare",
        lambda _, options, report: asked.append(options.request()["data_dir"]),
    )
    vitcli.decide({"model.depth": 3}, "quickstart", data_dir="mine")
    assert asked == [str(here / "mine")]


def train(seed, *, gain=0.0, worst=None):
    return math.nan if seed == worst else 70 + gain + seed % 3 / 10


better = functools.partial(train, gain=1.0)


def noisy(seed):
    return 70 + seed % 4 / 10


@pytest.mark.parametrize("value", [math.nan, "diverged", [0.9, 0.8]])
def test_a_training_without_a_score_is_named_and_earlier_pairs_stay(here, value):
    def fails(seed):
        return value if seed == 3 else better(seed)

    assert "fails with seed 3: " in (text := refusal(vitcli.decide, fails, noisy, folder="mine"))
    assert "Input should be" in text
    assert "fails with seed 3" in refusal(vitcli.decide, fails, noisy, folder="mine")
    value, notes = 71.0, []
    assert vitcli.decide(fails, noisy, folder="mine", on_message=notes.append).verdict == "better"
    assert ["3 pairs" in note for note in notes] == [True]


def test_the_scores_of_a_folder_are_those_of_one_change(here):
    decided = vitcli.decide(better, noisy, folder="mine")
    notes: list[str] = []
    again = vitcli.decide(better, noisy, folder="mine", on_message=notes.append)
    assert (again, "another change needs another folder" in notes[0]) == (decided, True)
    worse = functools.partial(train, gain=-1.0)
    assert "'gain', 1.0" in refusal(vitcli.decide, worse, noisy, folder="mine")
    assert "folder" in refusal(vitcli.decide, better, noisy)


def shifted(seed, weights):
    return 70 + seed % 4 / 10 + float(weights.sum())


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_another_array_is_another_change_however_it_is_printed(here, kind):
    """Of a large array, or of close numbers, repr shows the same."""
    one, same, other = (
        functools.partial(shifted, weights=kind([0.0] * 2500 + [middle] + [0.0] * 2500))
        for middle in (0.5, 0.5, -0.5)
    )
    vitcli.decide(one, noisy, folder="mine")
    vitcli.decide(same, noisy, folder="mine")
    assert "began with" in refusal(vitcli.decide, other, noisy, folder="mine")


def test_a_stopped_call_goes_on(here):
    seeds = []

    def change(seed):
        seeds.append(seed)
        if len(seeds) == 3:
            raise KeyboardInterrupt
        return better(seed)

    with pytest.raises(KeyboardInterrupt):
        vitcli.decide(change, noisy, folder="mine")
    decided = vitcli.decide(change, noisy, folder="mine")
    assert (decided.verdict, seeds[:5]) == ("better", [0, 1, 2, 2, 3])
    assert "margin" in refusal(vitcli.decide, change, noisy, folder="mine", margin=1.0)
    turned = vitcli.decide(change, noisy, folder="turned", higher_is_better=False)
    assert turned.mean == -decided.mean


def test_an_edited_file_of_scores_is_refused(here):
    vitcli.decide(better, noisy, folder="mine")
    path = here / "mine" / "scores.json"
    path.write_text(path.read_text().replace("71.0", "79.0"))
    assert "edited or damaged" in refusal(vitcli.decide, better, noisy, folder="mine")
