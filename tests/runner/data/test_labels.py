"""``data.labels``: a part of the labels, and all images."""

from dataclasses import replace

import pytest
import torch

from tests.runner.data.original_files import in_order
from vitcli.core.data.source import Images
from vitcli.core.spec import TASKS, DataSpec, ExperimentSpec
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
    assert everything.labels.tolist() == [-1] * 40
    for count in (3, 41):
        with pytest.raises(ConfigError, match=r"data\.labels"):
            keep_labels(images(), count)


def test_a_held_out_image_does_not_change_which_images_are_labelled(monkeypatch):
    whole = load_data(DataSpec(labels=30))
    split = load_data(DataSpec(labels=30, val_split=100))
    assert torch.equal(whole.train.pixels, split.train.pixels)
    assert len(split.all_train) == len(whole.all_train) - 100
    assert describe_data(DataSpec(labels=30)).num_train == 30
    monkeypatch.setitem(TASKS, "classify", replace(TASKS["classify"], uses_labels=False))
    with pytest.raises(ValueError, match=r"data\.labels"):
        ExperimentSpec(data=DataSpec(labels=30))
