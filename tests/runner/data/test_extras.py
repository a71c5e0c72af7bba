"""Tensors beside the pixels of an image, such as captions, in the hash and the order of images."""

from dataclasses import replace

import torch

from tests.runner.data.conftest import in_order
from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import data_hash


def test_the_hash_of_images_without_captions_is_that_of_earlier_versions():
    images = Images(torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2), torch.arange(4))
    wanted = "637a7c23709865a856999caa116e3ea29f8c0b919b6326714474ef1eb8480769"
    assert data_hash([images]) == wanted
    described = [replace(images, extra={"caption": torch.full((4, 1), each)}) for each in (97, 98)]
    assert len({data_hash([each]) for each in (images, *described)}) == 3


def test_equal_pictures_are_sorted_by_their_captions():
    pixels, labels = torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)
    captions = torch.tensor([[98], [97]], dtype=torch.uint8)
    both = (Images(pixels, labels, {"caption": each}) for each in (captions, captions.flip(0)))
    one, other = (in_order(images).extra["caption"] for images in both)
    assert one.equal(other)
