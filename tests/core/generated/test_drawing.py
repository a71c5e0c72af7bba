"""Generated images: reproducible bytes, splits and classes."""

import hashlib

import pytest
import torch

from vitcli.core.generated.data_sets import generated_set
from vitcli.core.generated.drawing import SIDE

SAMPLES = {
    "shapes": "7b50f965dcc1ffa6eaf7d20e7616bcadad741b7ec34d5b77e9913f97ba04bf37",
    "scenes": "e093036b822112a8adf24424a56f129b45765173de7fa38e82e98bf7d0007c84",
    "gratings": "0f142ba64c452b75ae3279d2954ab63ec684882040dc7dd153444bf5aca94fd7",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_are_the_same_on_every_machine(name):
    train, test = generated_set(name).draw(60, 30)
    digest = hashlib.sha256(train.pixels.numpy().tobytes() + test.pixels.numpy().tobytes())
    assert digest.hexdigest() == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_splits_and_seeds_differ_and_classes_are_balanced(name):
    train, test = generated_set(name).draw(120, 60)
    other, _ = generated_set(name).draw(120, 60, seed=1)
    assert train.pixels.shape == (120, 3, SIDE, SIDE)
    assert train.pixels.dtype == torch.uint8
    classes = len(generated_set(name).class_names)
    assert train.labels.bincount().tolist() == [120 // classes] * classes
    assert test.labels.bincount().tolist() == [60 // classes] * classes
    assert not torch.equal(train.pixels, other.pixels)
    seen = {image.numpy().tobytes() for image in train.pixels}
    assert len(seen) == 120
    assert not seen & {image.numpy().tobytes() for image in test.pixels}
