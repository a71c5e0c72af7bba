"""The generated data sets: reproducible bytes, and classes that differ as documented."""

import hashlib

import pytest
import torch

from vitcli.core.generated import gratings, scenes, shapes
from vitcli.core.generated.data_sets import GENERATED_SETS
from vitcli.core.generated.drawing import SIDE

DRAW = {"shapes": shapes.shapes, "scenes": scenes.scenes, "gratings": gratings.gratings}
SAMPLES = {
    "shapes": "7b50f965dcc1ffa6eaf7d20e7616bcadad741b7ec34d5b77e9913f97ba04bf37",
    "scenes": "e093036b822112a8adf24424a56f129b45765173de7fa38e82e98bf7d0007c84",
    "gratings": "0f142ba64c452b75ae3279d2954ab63ec684882040dc7dd153444bf5aca94fd7",
}


@pytest.mark.parametrize("name", DRAW)
def test_the_bytes_are_the_same_on_every_machine(name):
    train, test = DRAW[name](60, 30)
    digest = hashlib.sha256(train.pixels.numpy().tobytes() + test.pixels.numpy().tobytes())
    assert digest.hexdigest() == SAMPLES[name]


@pytest.mark.parametrize("name", DRAW)
def test_splits_and_seeds_differ_and_classes_are_balanced(name):
    train, test = DRAW[name](120, 60)
    other, _ = DRAW[name](120, 60, seed=1)
    assert train.pixels.shape == (120, 3, SIDE, SIDE)
    assert train.pixels.dtype == torch.uint8
    classes = len(GENERATED_SETS[name].class_names)
    assert train.labels.bincount().tolist() == [120 // classes] * classes
    assert test.labels.bincount().tolist() == [60 // classes] * classes
    assert not torch.equal(train.pixels, other.pixels)
    seen = {image.numpy().tobytes() for image in train.pixels}
    assert len(seen) == 120
    assert not seen & {image.numpy().tobytes() for image in test.pixels}


@pytest.mark.parametrize("name", gratings.CLASSES)
def test_the_strongest_wave_has_the_direction_and_the_period_of_the_class(name):
    pixels = gratings.draw(gratings.CLASSES[name], 50, torch.Generator().manual_seed(2)).double()
    gray = pixels - pixels.mean((2, 3), keepdim=True)
    power = torch.fft.fft2(gray).abs().square().sum(1)  # (n, 32, 32), over the channels
    power[:, 0, 0] = 0
    places = power.flatten(1).argmax(1)
    rows, columns = ((side + 16) % 32 - 16 for side in (places // 32, places % 32))
    period = 32 / (rows.square() + columns.square()).double().sqrt()
    angle = torch.atan2(rows.abs().double(), columns.abs().double()).rad2deg()
    width, orientation = name.split("-")
    assert (period / gratings.PERIODS[width]).median() == pytest.approx(1, abs=0.15)
    wanted = {"upright": 0, "diagonal": 45, "level": 90}[orientation]
    assert angle.median().item() == pytest.approx(wanted, abs=12)
    assert orientation in gratings.TANGENTS


STEPS = torch.arange(-16, 16, 0.1, dtype=torch.float64) + 0.05
X, Y = STEPS[None, :], STEPS[:, None]


def distances(name):
    """Return the distance of each point of a fine grid from each part of a class."""
    return [part.distance(X - x, Y - y) for part, (x, y) in scenes.CLASSES[name]]


def test_paired_classes_have_the_same_parts_in_other_places():
    assert len(scenes.PAIRS) == len({*scenes.CLASS_NAMES}) / 2 == 5
    for pair in scenes.PAIRS:
        (one, here), (other, there) = (zip(*scenes.CLASSES[name], strict=True) for name in pair)
        assert one == other
        assert here != there


@pytest.mark.parametrize("axis", [0, 1], ids=["columns", "rows"])
@pytest.mark.parametrize("pair", scenes.PAIRS, ids="-".join)
def test_paired_classes_have_equal_sums_of_rows_and_of_columns(pair, axis):
    one, other = (sum((d < 0).double() for d in distances(name)).sum(axis) for name in pair)
    assert one.sum() > 3000
    assert (one - other).abs().max() <= 1, "a profile of the image shows the class"
