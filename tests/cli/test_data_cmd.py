"""`vitcli data` on the embedded data set and on tiny folders; nothing is downloaded."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli import commands
from tests.cli.commands import document, said
from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_SETS
from vitcli.runner.data.cache import files_in_cache
from vitcli.runner.data.contact_sheet import GAP, contact_sheet, tile_size

vitcli = partial(commands.vitcli, "data")
pytestmark = pytest.mark.usefixtures("here")


def test_info_downloads_nothing(monkeypatch):
    monkeypatch.delenv("VITCLI_OFFLINE")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a connection"))
    said(4, "data", "info", "cifar10")


def test_info_of_ones_own_pictures(pictures):
    words = ("data", "info", f"imagefolder:{pictures}")
    found = document(*words, "-o", "sheet.png")
    with Image.open("sheet.png") as sheet:
        assert (sheet.format, np.asarray(sheet).std() > 10) == ("PNG", True)
    files = (pictures / "train").rglob("*.png")
    pixels = np.stack([np.asarray(Image.open(file)) for file in files]) / 255
    np.testing.assert_allclose(found["mean"], pixels.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["std"], pixels.std((0, 1, 2)), rtol=1e-6)


def test_what_is_on_this_machine_is_listed_with_its_place(monkeypatch, here):
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (here / f"{split}-{kind}-ubyte.gz").touch()
    monkeypatch.setenv("VITCLI_DATA", str(here))
    monkeypatch.setattr("vitcli.runner.data.get.get_data", lambda *_, **__: None)
    assert document("data", "get", "mnist")["place"] == str(here)
    places = {row["name"]: row["place"] for row in document("data", "ls")["data_sets"]}
    assert [*places] == [*DATA_SETS]
    assert (places["mnist"], places["cifar10"]) == (str(here), None)


def test_rm_empties_the_cache_of_a_data_set_after_asking(pictures):
    name = f"imagefolder:{pictures}"
    said(0, "data", "info", name)
    before, cached = [*pictures.rglob("*")], files_in_cache(name)
    assert len(cached) >= 2
    assert "--yes" in said(2, "data", "rm", name)
    assert files_in_cache(name) == cached
    assert document("data", "rm", name, "--yes")["removed"] == [str(path) for path in cached]
    assert (files_in_cache(name), [*pictures.rglob("*")]) == ([], before)
    assert document("data", "rm", name)["removed"] == []


@pytest.mark.parametrize("linked", ["cifar10", "cifar10/train"])
def test_rm_removes_a_link_but_no_file_behind_it(linked, tmp_path, monkeypatch):
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path / "cache"))
    link, own = tmp_path / "cache" / "downloads" / linked, tmp_path / "own" / "cat" / "1.png"
    for path in (link, own):
        path.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    link.symlink_to(tmp_path / "own")
    assert document("data", "rm", "cifar10", "--yes")["removed"] == [str(link)]
    assert (link.is_symlink(), own.read_bytes()) == (False, b"mine")


@pytest.mark.parametrize(("in_chans", "size"), [(1, (28, 28)), (3, (100, 80))])
def test_each_row_shows_the_first_ten_of_its_class(in_chans, size):
    """Every image of class c has the level 20 c + its number; twelve of each of three classes."""
    labels = torch.arange(3).repeat(12)
    levels = (20 * labels + torch.arange(12).repeat_interleave(3)).byte()
    images = Images(levels[:, None, None, None].expand(-1, in_chans, *size).contiguous(), labels)
    facts: dict[str, Any] = {"mean": (0.5,) * in_chans, "std": (0.2,) * in_chans}
    facts |= {"name": "levels", "class_names": ("a", "b", "c"), "data_hash": ""}
    sheet = contact_sheet(DataSet(train=images, test=images, **facts))
    pixels = np.asarray(sheet)
    width, height = tile_size(*size)
    for row in range(3):
        for column in range(10):
            y = sheet.height - (3 - row) * (height + GAP) + height // 2
            x = sheet.width - (10 - column) * (width + GAP) + width // 2
            assert pixels[y, x].tolist() == [20 * row + column] * 3
