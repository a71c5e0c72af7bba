"""The data set ``shapes``: reproducible bytes, balanced classes that differ in arrangement."""

import hashlib

import pytest
import torch

from vitcli.core.data.shapes import CLASS_NAMES, CLASSES, PAIRS, SIDE, draw, shapes

SAMPLE = "7b50f965dcc1ffa6eaf7d20e7616bcadad741b7ec34d5b77e9913f97ba04bf37"


def test_the_bytes_are_the_same_on_every_machine():
    train, test = shapes(60, 30)
    digest = hashlib.sha256(train.pixels.numpy().tobytes() + test.pixels.numpy().tobytes())
    assert digest.hexdigest() == SAMPLE


def test_splits_and_seeds_differ_and_classes_are_balanced():
    train, test = shapes(120, 60)
    other, _ = shapes(120, 60, seed=1)
    assert train.pixels.shape == (120, 3, SIDE, SIDE)
    assert train.pixels.dtype == torch.uint8
    assert train.labels.bincount().tolist() == [12] * 10
    assert test.labels.bincount().tolist() == [6] * 10
    assert not torch.equal(train.pixels, other.pixels)
    seen = {image.numpy().tobytes() for image in train.pixels}
    assert len(seen) == 120
    assert not seen & {image.numpy().tobytes() for image in test.pixels}


def test_paired_classes_have_the_same_parts_in_another_order():
    assert len(PAIRS) == 5
    assert len(set(CLASS_NAMES)) == 10
    for one, other in PAIRS:
        assert CLASSES[one] == CLASSES[other][::-1]
        assert CLASSES[one] != CLASSES[other]


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_pictures_vary_in_their_pixels(name):
    pixels = draw(CLASSES[name], 20, torch.Generator().manual_seed(1)).float()
    assert pixels.std((1, 2, 3)).min() > 15
    assert pixels.amax((1, 2, 3)).min() > 150
    assert (pixels[0] - pixels[1]).abs().mean() > 10
