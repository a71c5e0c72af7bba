"""`vitcli.decide` of numbers: what it takes and what it refuses."""

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
