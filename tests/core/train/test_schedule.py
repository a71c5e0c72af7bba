"""Schedules at their start and end, and against torch."""

import itertools

import pytest
import torch

from vitcli.core.train.schedule import SCHEDULES, lr_factor


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_rises_in_equal_steps_to_the_peak(name):
    rates = [lr_factor(s, schedule=name, warmup_steps=4, num_steps=20) for s in range(5)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(("name", "end"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0)])
def test_the_schedule_ends_at_min_lr_ratio(name, end):
    rates = [
        lr_factor(s, schedule=name, warmup_steps=5, num_steps=50, min_ratio=0.1) for s in range(51)
    ]
    assert rates[50] == pytest.approx(end)
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(rates[5:]))


def test_cosine_equals_torch():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30, eta_min=0.2)
    for step in range(30):
        ours = lr_factor(step, schedule="cosine", warmup_steps=0, num_steps=30, min_ratio=0.2)
        assert ours == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
