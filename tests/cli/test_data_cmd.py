"""`vitcli data` on the embedded data set and on tiny folders; nothing is downloaded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_SETS
from vitcli.runner.data.contact_sheet import GAP, TILE, about, contact_sheet, examples, tile_size
from vitcli.runner.text import one_line

pytestmark = pytest.mark.usefixtures("here")


def vitcli(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def test_ls_names_every_data_set_and_what_to_type():
    code, out, talk = vitcli("ls")
    assert code == 0
    lines = out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(DATA_SETS)
    assert lines[0].endswith("embedded")
    assert "32x32x3       10  50,000  10,000  not here\n" in out
    assert "imagefolder:PATH" in talk
    assert "vitcli data get NAME" in talk
    found = json.loads(vitcli("ls", "--json")[1])
    assert [each["name"] for each in found] == list(DATA_SETS)
    assert found[DATA_SETS.index("cifar10")] == {
        "name": "cifar10",
        "img_size": [32, 32],
        "in_chans": 3,
        "num_classes": 10,
        "num_train": 50_000,
        "num_test": 10_000,
        "kind": "missing",
        "place": None,
        "decoded": [],
    }


def test_ls_shows_where_a_data_set_lies(here, monkeypatch):
    for file in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (here / file).touch()
    for file in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (here / file).touch()
    monkeypatch.setenv("VITCLI_DATA", str(here))
    found = {each["name"]: each for each in json.loads(vitcli("ls", "--json")[1])}
    assert found["mnist"]["place"] == str(here)
    assert found["cifar10"]["place"] is None
    assert f"{here} (files)" in vitcli("ls")[1]


def test_info_of_ones_own_pictures(pictures):
    code, out, talk = vitcli("info", f"imagefolder:{pictures}")
    assert code == 0
    assert "images    80 for training, 24 for testing" in out
    assert "size      8x8, 3 channels" in out
    assert out.splitlines()[-2:] == ["bright     40    12", "dark       40    12"]
    assert talk.endswith(f"next: vitcli train --data imagefolder:{pictures}\n")
    found = json.loads(vitcli("info", f"imagefolder:{pictures}", "--json")[1])
    assert found["images_per_class"] == {"train": [40, 40], "test": [12, 12]}
    assert found["class_names"] == ["bright", "dark"]
    assert found["num_train"] == 80
    assert len(found["data_hash"]) == 64
    assert found["picture"] is None
    files = (pictures / "train").rglob("*.png")
    pixels = np.stack([np.asarray(Image.open(file)) for file in files]) / 255
    np.testing.assert_allclose(found["mean"], pixels.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["std"], pixels.std((0, 1, 2)), rtol=1e-6)


def test_info_of_cifar10_corrects_the_std_that_is_widely_copied(monkeypatch):
    data = replace(tiny_data(num_classes=2), name="cifar10")
    with monkeypatch.context() as patch:
        patch.setattr("vitcli.runner.data.load.load_data", lambda *_, **__: data)
        out = vitcli("info", "cifar10")[1]
    assert "(0.2023, 0.1994, 0.2010), is the mean of the stds of the single images" in out
    assert "(0.2470, 0.2435, 0.2616)" in out
    assert "0.2470" not in vitcli("info", "scenes")[1]


def test_info_downloads_nothing(monkeypatch):
    monkeypatch.delenv("VITCLI_OFFLINE")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a connection"))
    code, _, talk = vitcli("info", "cifar10")
    assert code == 4
    assert "vitcli data get cifar10" in talk


@pytest.mark.parametrize("command", ["info", "get"])
def test_a_misspelt_name_has_a_suggestion(command):
    code, _, talk = vitcli(command, "cifar1O")
    assert code == 2
    assert "did you mean 'cifar10'?" in talk


@pytest.mark.parametrize("command", ["info", "get"])
def test_control_characters_are_shown_escaped(command):
    code, out, talk = vitcli(command, "imagefolder:no\x1b[31mwhere")
    assert code in (2, 4)
    assert "\x1b" not in out + talk
    assert "no\\x1b[31mwhere" in talk


def test_get_of_what_is_embedded_is_refused():
    code, _, talk = vitcli("get", "scenes")
    assert code == 2
    assert "needs no download" in talk


def test_get_from_a_place_without_the_data_set(here):
    code, _, talk = vitcli("get", "cifar10", "--from", here / "nothing")
    assert code == 4
    assert talk.startswith("error: cifar10 is not in")


def test_get_says_what_is_next(monkeypatch, here):
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (here / f"{split}-{kind}-ubyte.gz").touch()
    monkeypatch.setenv("VITCLI_DATA", str(here))
    monkeypatch.setattr("vitcli.runner.data.get.get_data", lambda *_, **__: None)
    assert vitcli("get", "mnist") == (
        0,
        f"mnist  {here} (files)\n",
        "next: vitcli data info mnist, vitcli train --data mnist\n",
    )
    assert json.loads(vitcli("get", "mnist", "--json")[1])["place"] == str(here)


def test_the_picture_is_written_as_png(pictures):
    name = f"imagefolder:{pictures}"
    code, out, talk = vitcli("info", name, "--picture", "sheet.png", "--json")
    assert code == 0
    assert json.loads(out)["picture"] == "sheet.png"
    assert "wrote sheet.png" in talk
    with Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"
        before = np.asarray(sheet)
    vitcli("info", name, "--picture", "again.png")
    assert Path("sheet.png").read_bytes() == Path("again.png").read_bytes()
    assert before.std() > 10


@pytest.mark.parametrize(
    ("file", "told"), [("a.jpg", "name it a.png"), ("no/a.png", "no folder no")]
)
def test_a_picture_that_cannot_be_is_refused_before_the_data_is_read(file, told, monkeypatch):
    monkeypatch.setattr("vitcli.runner.data.load.load_data", lambda *_, **__: pytest.fail("read"))
    code, _, talk = vitcli("info", "scenes", "--picture", file)
    assert code == 2
    assert told in talk


def tiny_data(num_classes: int = 3, in_chans: int = 3, size: tuple[int, int] = (4, 4)) -> DataSet:
    """Every image of class c has the level 20 c + its number; twelve a class."""
    labels = torch.arange(num_classes).repeat(12)
    numbers = torch.arange(12).repeat_interleave(num_classes)
    levels = (20 * labels + numbers).byte()
    pixels = levels[:, None, None, None].expand(-1, in_chans, *size).contiguous()
    images = Images(pixels, labels)
    return DataSet(
        name="imagefolder:/home/me/levels",
        class_names=tuple(f"class {c}" for c in range(num_classes)),
        train=images,
        test=images,
        mean=(0.5,) * in_chans,
        std=(0.2,) * in_chans,
        data_hash="d" * 64,
    )


@pytest.mark.parametrize("in_chans", [1, 3])
@pytest.mark.parametrize("size", [(4, 4), (28, 28), (32, 16), (100, 80), (65, 65)])
def test_each_row_shows_the_first_ten_of_its_class(in_chans, size):
    data = tiny_data(in_chans=in_chans, size=size)
    sheet = contact_sheet(data)
    pixels = np.asarray(sheet)
    width, height = tile_size(*size)
    for row in range(3):
        for column in range(10):
            y = sheet.height - (3 - row) * (height + GAP) + height // 2
            x = sheet.width - (10 - column) * (width + GAP) + width // 2
            assert pixels[y, x].tolist() == [20 * row + column] * 3


def test_a_class_with_few_images_has_a_short_row():
    data = tiny_data()
    keep = (data.train.labels != 1) | (torch.arange(36) < 6)
    images = Images(data.train.pixels[keep], data.train.labels[keep])
    few = DataSet(**{**vars(data), "train": images})
    assert [len(examples(few, label)) for label in range(3)] == [10, 2, 10]
    contact_sheet(few)


def test_small_images_grow_by_a_whole_factor_and_the_aspect_is_kept():
    assert tile_size(2, 2) == (TILE, TILE)
    assert tile_size(8, 16) == (TILE, TILE // 2)
    assert tile_size(40, 40) == (40, 40)


def test_names_fit_whatever_a_folder_is_called():
    assert one_line("plain") == "plain"
    assert one_line("a\nb\x1b[31m") == "a?b?[31m"
    assert len(one_line("w" * 500)) == 24
    names = ("w" * 500, "\u96ea", "b\ne")
    sheet = contact_sheet(DataSet(**{**vars(tiny_data()), "class_names": names}))
    assert sheet.width < 1100


def test_many_classes_are_cut_and_the_picture_says_so():
    sheets = [contact_sheet(tiny_data(num_classes=count)) for count in (100, 120)]
    assert sheets[0].height == sheets[1].height
    assert about(tiny_data(), 3) == "36 training images, 4x4, 3 classes"
    assert about(tiny_data(), 2).endswith("3 classes, the first 2 shown")


@pytest.mark.parametrize("version", ["refuses", "leaves ~"])
def test_a_user_without_a_home_folder_is_told_the_variable(here, monkeypatch, version):
    def user_cache_dir(name: str) -> str:
        if version == "refuses":
            raise RuntimeError("could not determine the home directory")
        return f"~/.cache/{name}"

    monkeypatch.delenv("VITCLI_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", user_cache_dir)
    for words in (["data", "ls"], ["train", "quickstart", "--epochs", "1"]):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "VITCLI_CACHE" in done.stderr) == (5, True), done.stderr
        assert done.stderr.count("error:") == 1
    assert not Path("~").exists()
