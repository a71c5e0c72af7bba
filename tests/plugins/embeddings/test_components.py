"""Colours and shares of patch features are those of their principal components."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitcli.plugins.embeddings.components import patch_colours


def draw(spreads: list[float]) -> Tensor:
    """Return features (4, 9, D) with a standard deviation for each of D rotated directions."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 9, len(spreads), generator=generator, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(len(spreads), len(spreads), generator=generator).double())
    return rows * torch.tensor(spreads).double() @ turn


def test_shares_and_channels_are_those_of_the_covariance():
    features = draw([9.0, 3.0, 1.0, 0.1])
    colours, shares = patch_colours(features)
    rows, channels = features.flatten(0, 1), colours.flatten(0, 1)
    values, directions = (found.flip(-1) for found in torch.linalg.eigh(rows.T.cov()))
    assert_close(torch.tensor(shares).double(), (values / values.sum())[:3])
    for channel in range(3):
        scores = (rows - rows.mean(0)) @ directions[:, channel]
        inside = (channels[:, channel] - 0.5).abs() < 0.499  # the middle 98 % are not clipped
        pair = torch.stack([scores[inside], channels[inside, channel]])
        assert pair.corrcoef()[0, 1].abs() == pytest.approx(1, abs=1e-6)


def test_colours_fill_the_range_and_do_not_depend_on_scale_and_shift():
    features = draw([5.0, 3.0, 2.0, 1.0])
    colours, shares = patch_colours(features)
    assert colours.amin((0, 1)).tolist() == [0, 0, 0]
    assert colours.amax((0, 1)).tolist() == [1, 1, 1]
    again, same = patch_colours(3 * features + 7)
    assert_close(again, colours)
    assert_close(same, shares)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_missing_component_is_grey(width):
    features = torch.zeros(2, 3, width)
    features[..., 0] = torch.arange(6.0).view(2, 3)
    colours, shares = patch_colours(features)
    assert shares == pytest.approx([1, 0, 0])
    assert (colours[..., 1:] == 0.5).all()
    assert colours[..., 0].min() == 0
