"""Statistics of attention equal results by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from vitcli.plugins.distance.statistics import (
    attention_distance,
    head_similarity,
    near_share,
    patch_distances,
    patch_weights,
    uniform_distance,
    uniform_near_share,
)


def test_distances_are_pixels_between_patch_centres():
    found = patch_distances((2, 3), patch_size=4)
    first = [0.0, 4, 8, 4, math.hypot(4, 4), math.hypot(4, 8)]
    assert_close(found[0], torch.tensor(first).double())
    assert_close(found, found.T)


def test_distance_equals_the_result_by_hand():
    # Two patches are 4 pixels apart. In head 0 a patch attends to itself, in head 1 to the other
    # patch, in head 2 half to the other patch and half to CLS. CLS has no position and is left out.
    to_self = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    to_other = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]])
    half = torch.tensor([[1.0, 0, 0], [0.5, 0, 0.5], [0.5, 0.25, 0.25]])
    weights = torch.stack([to_self, to_other, half])[None]
    assert_close(attention_distance(weights, (1, 2), 4), torch.tensor([[0.0, 4.0, 3.0]]))
    assert_close(patch_weights(weights, (1, 2))[0, 2], torch.tensor([[0.0, 1.0], [0.5, 0.5]]))


def test_uniform_attention_has_the_mean_distance_of_all_pairs():
    weights = torch.full((1, 1, 13, 13), 1 / 13)
    found = attention_distance(weights, (3, 4), 2).item()
    assert found == pytest.approx(uniform_distance((3, 4), 2))
    assert uniform_distance((1, 2), 4) == 2.0, "0 and 4 pixels, equally often"


def test_similarity_equals_the_result_by_hand():
    one, other = torch.eye(2), torch.eye(2).flip(0)
    weights = torch.stack([one, other, (one + other) / 2])[None]
    for batch in (weights, torch.cat([weights, weights])):
        assert head_similarity(batch).item() == pytest.approx((0 + 2 * math.sqrt(0.5)) / 3)
    assert head_similarity(weights[:, :1]).isnan()


def test_the_share_near_a_patch_equals_the_result_by_hand():
    # In 1x3 patches, neighbours touch; the first and the third do not. In 2x2 patches, all touch.
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])[None, None]
    assert near_share(weights, (1, 3)).item() == pytest.approx((0.5 + 1.0 + 0.4) / 3)
    assert uniform_near_share((1, 3)) == pytest.approx(7 / 9)
    assert uniform_near_share((2, 2)) == 1.0
    uniform = near_share(torch.full((1, 1, 17, 17), 1 / 17), (4, 4))
    assert uniform.item() == pytest.approx(uniform_near_share((4, 4)))
