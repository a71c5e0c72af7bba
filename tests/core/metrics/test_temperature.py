"""The temperature is the optimum of its loss, and finds the one that made the labels."""

import pytest
import torch
import torch.nn.functional as F

from vitcli.core.metrics.classification import calibration_error
from vitcli.core.metrics.temperature import fit_temperature


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_labels_that_follow_a_temperature_give_it_back(true):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40_000, 6, generator=generator, dtype=torch.float64)
    labels = (logits / true).softmax(1).multinomial(1, generator=generator)[:, 0]
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(true, rel=0.05)
    losses = [F.cross_entropy(logits / (found * factor), labels) for factor in (0.98, 1.0, 1.02)]
    assert losses[1] == min(losses)
    if true > 1:
        before, after = (calibration_error(each, labels) for each in (logits, logits / found))
        assert after < 0.01 < before


def test_logits_that_are_always_right_have_a_low_temperature():
    assert fit_temperature(10 * torch.eye(4), torch.arange(4)) < 0.5
