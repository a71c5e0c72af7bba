"""Logits of a classifier over whole splits."""

import torch
from torch import nn
from torch.testing import assert_close

from vitcli.core.metrics.classification import compute_logits


def test_mirroring_averages_probabilities_and_keeps_the_mode():
    class FirstColumn(nn.Module):
        def forward(self, x):
            return x[:, 0, 0, :2]

    model = FirstColumn()
    images = torch.randn(3, 1, 2, 2)
    batches = [{"images": images, "targets": torch.zeros(3)}]
    plain, mirrored = compute_logits(model, batches), compute_logits(model, batches, flip=True)
    row = images[:, 0, 0]
    assert_close(plain, row)
    expected = (row.softmax(-1) + row.flip(-1).softmax(-1)) / 2
    assert_close(mirrored.exp(), expected)
    assert model.training
