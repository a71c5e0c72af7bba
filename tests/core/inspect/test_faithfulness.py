"""Deletion and insertion curves of a model with a known contribution of each patch."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitcli.core.inspect.faithfulness import (
    area,
    centre_map,
    deletion,
    insertion,
    ranks,
    removal_counts,
)


class Adds(torch.nn.Module):
    """A model whose logit of class 1 is a weighted sum over the four 2x2 patches of an image."""

    weights = torch.tensor([[3.0, 1.0], [-2.0, 0.5]])

    def forward(self, images: Tensor) -> Tensor:
        cells = images.unfold(2, 2, 2).unfold(3, 2, 2).mean((1, 4, 5))  # (B, 2, 2)
        logit = (cells * self.weights).sum((1, 2))
        return torch.stack([torch.zeros_like(logit), logit], dim=1)


ONES = torch.ones(1, 3, 4, 4)
CLASS = torch.tensor([1])


def follow(curve, maps) -> list[float]:
    shares = curve(Adds(), ONES, maps, CLASS, [0, 1, 2, 3, 4])[0]
    return shares.logit().tolist()


def test_the_highest_patches_are_deleted_and_inserted_first():
    true = Adds.weights[None]
    assert follow(deletion, true) == pytest.approx([2.5, -0.5, -1.5, -2.0, 0.0], abs=1e-5)
    assert follow(insertion, true) == pytest.approx([0.0, 3.0, 4.0, 4.5, 2.5], abs=1e-5)


def test_each_image_uses_its_own_map_and_class():
    maps = torch.stack([Adds.weights, -Adds.weights])
    images, classes = ONES.repeat(2, 1, 1, 1), torch.tensor([1, 0])
    together = deletion(Adds(), images, maps, classes, [0, 1, 4])
    for i in range(2):
        alone = deletion(Adds(), ONES, maps[i : i + 1], classes[i : i + 1], [0, 1, 4])
        assert_close(together[i : i + 1], alone)


def test_equal_patches_are_ranked_in_reading_order():
    assert ranks(torch.tensor([[[1.0, 2.0], [2.0, 0.0]]])).tolist() == [[2, 0, 1, 3]]
    assert ranks(torch.zeros(1, 2, 2)).tolist() == [[0, 1, 2, 3]]


def test_area_is_the_mean_height_of_a_curve():
    curves = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])
    assert_close(area(curves, [0, 2, 4]), torch.tensor([0.5, 1.0]))
    assert_close(area(curves, [0, 1, 4]), torch.tensor([0.375, 1.0]))  # 0.75 / 4 + 0.25 * 3 / 4


def test_the_centre_map_is_highest_in_the_middle_and_symmetric():
    middle = centre_map((3, 5))
    assert middle.flatten().argmax() == 7
    assert_close(middle, middle.flip(0))
    assert_close(middle, middle.flip(1))
    assert_close(centre_map((5, 3)), middle.mT)


@pytest.mark.parametrize("num_patches", [1, 4, 15, 16, 64, 196])
def test_counts_increase_from_none_to_all_patches(num_patches):
    counts = removal_counts(num_patches)
    assert (counts[0], counts[-1]) == (0, num_patches)
    assert len(counts) == min(17, num_patches + 1)
    assert all(a < b for a, b in itertools.pairwise(counts))
