"""Transformations that captions name, each against its definition."""

import pytest
import torch
from torch.testing import assert_close

from vitcli.core.data.augment import scale_and_shift, standardize
from vitcli.core.objectives.clip import changes


@pytest.fixture
def levels():
    return torch.rand(5, 3, 8, 8, dtype=torch.float64)


def test_blur_is_the_mean_of_a_box(levels):
    found = changes.blur(levels)
    assert_close(found[:, :, 3, 4], levels[:, :, 1:6, 2:7].mean((2, 3)))
    corner = levels[:, :, [0, 0, 0, 1, 2]][..., [0, 0, 0, 1, 2]].mean((2, 3))
    assert_close(found[:, :, 0, 0], corner)


def test_contrast_scales_around_the_mean(levels):
    found = changes.contrast(levels, 0.5)
    assert_close(found.mean((1, 2, 3)), levels.mean((1, 2, 3)))
    assert_close(found.std((1, 2, 3)), levels.std((1, 2, 3)) / 2)
    high = changes.CHANGES["high_contrast"](levels)
    assert high.std() > levels.std()
    assert high.min() >= 0
    assert high.max() <= 1


def test_small_and_crop_are_half_the_side(levels):
    found = changes.small(levels)
    assert_close(found[:, :, 2, 2], levels[:, :, :2, :2].mean((2, 3)))
    assert_close(found[:, :, 0, 0], levels.mean((2, 3)))
    inside = torch.zeros(1, 1, 8, 8)
    inside[:, :, 2:6, 2:6] = 1
    assert (changes.crop(inside) == 1).all()


def test_each_image_of_a_batch_has_its_own_transformation(levels):
    pixels = (levels * 255).round().to(torch.uint8)
    scale, shift = scale_and_shift(torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4]))
    images = standardize(pixels, scale, shift)
    names = list(changes.CHANGES)
    which = torch.tensor([names.index(n) for n in ("none", "grey", "blur", "small", "crop")])
    found = changes.change(images, which, scale, shift)
    for i, place in enumerate(which.tolist()):
        wanted = changes.CHANGES[names[place]](pixels[i : i + 1] / 255)
        assert_close((found[i : i + 1] + shift) / (255 * scale), wanted.float(), atol=1e-5, rtol=0)
    assert not torch.equal(changes.change(images, which.flip(0), scale, shift), found)
