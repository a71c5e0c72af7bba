"""``data.labels``: a part of the labels, and all images."""

import pytest
import torch

from tests.runner.data.original_files import in_order
from vitcli.core.data.source import Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import keep_labels
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.errors import ConfigError

pytestmark = pytest.mark.usefixtures("cache")


def images(count: int = 40, classes: int = 4) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    return in_order(Images(pixels, labels))


def kept(count: int) -> set[bytes]:
    return {image.numpy().tobytes() for image in keep_labels(images(), count)[0].pixels}


def test_the_labels_are_balanced_and_nested():
    labelled, everything = keep_labels(images(), 12)
    assert torch.bincount(labelled.labels).tolist() == [3, 3, 3, 3]
    assert kept(4) < kept(12) < kept(20)
    assert len(everything) == 40
    assert set(everything.labels.tolist()) == {-1}


def test_a_held_out_image_does_not_change_which_images_are_labelled():
    whole = load_data(DataSpec(labels=30))
    split = load_data(DataSpec(labels=30, val_split=100))
    assert torch.equal(whole.train.pixels, split.train.pixels)
    assert len(split.all_train) == len(whole.all_train) - 100
    plain = load_data(DataSpec())
    assert plain.all_train is plain.train
    assert describe_data(DataSpec(labels=30)).num_train == 30


@pytest.mark.parametrize("count", [3, 41])
def test_a_wrong_number_of_labels_is_refused(count):
    with pytest.raises(
        ConfigError, match=rf"data\.labels {count} must be at least 4, one for each"
    ):
        keep_labels(images(), count)
