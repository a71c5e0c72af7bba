"""Tensors beside the pixels of an image, such as captions, in the hash and the order of images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runner.data.conftest import in_order
from vitcli.core.data.source import Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import data_hash
from vitcli.runner.data.extras import EXTRAS, ExtraReader
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import InputError


def read_depths(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    missing = [path for path in pictures if f"{path}.depth" not in files]
    if missing:
        raise InputError(f"no depth of {missing[0]}")
    return torch.tensor([[int(Path(f"{path}.depth").read_text())] for path in pictures])


def test_a_row_reads_another_kind_of_files(cache, root, monkeypatch):
    row = ExtraReader(
        is_own=lambda name: name.endswith(".depth"),
        read=read_depths,
        random=lambda count, generator: torch.zeros(count, 1),
    )
    monkeypatch.setitem(EXTRAS, "depth", row)
    spec = DataSpec(name=f"imagefolder:{root}")
    for picture in root.rglob("*.png"):
        Path(f"{picture}.depth").write_text(picture.stem.rpartition("-")[2])
    for _ in range(2):  # the second time from the cache
        images = load_data(spec, extras=["depth"]).train
        numbers = [int(Path(name).stem.rpartition("-")[2]) for name in images.names]
        assert images.extra["depth"][:, 0].tolist() == numbers
    next(root.rglob("*.depth")).unlink()
    notes: list[str] = []
    assert not load_data(spec, on_message=notes.append).train.extra
    assert any("depths are not used" in note for note in notes)
    with pytest.raises(InputError, match="no depth of"):
        load_data(spec, extras=["depth"])


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
