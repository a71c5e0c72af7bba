"""Captions of one's own pictures: read, refused in one line, and trained with."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.runner.train.conftest import train
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.spec import DataSpec
from vitcli.runner.data import picture_reader
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_module

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def root(tmp_path):
    """Two classes of six pictures, each of one colour; the caption names the red value."""
    folder = tmp_path / "pets"
    for file, caption in PAIRS:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (int(caption.removeprefix("red ")), 0, 0)).save(folder / file)
    write(folder / "captions.csv", PAIRS)
    return folder


PAIRS = [
    (f"{name}/{i}.png", f"red {40 * i + label}")
    for label, name in enumerate(("cat", "dog"))
    for i in range(6)
]
"""Picture and its caption."""


def write(path: Path, rows, head=("file", "caption")) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def load(root, **options):
    return load_data(DataSpec(name=f"imagefolder:{root}", **options), extras=["caption"])


def texts(images: Images) -> list[str]:
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in images.extra["caption"]]


def fits(images: Images) -> bool:
    red = images.pixels[:, 0, 0, 0].tolist()
    return [f"red {value}" for value in red] == [text.split("\n")[0] for text in texts(images)]


def test_captions_follow_their_pictures(root):
    data = load(root, val_split=2, resize=4)
    assert all(map(fits, (data.train, data.val, data.test)))
    assert len(data.train) + len(data.val) + len(data.test) == 12
    assert fits(evenly_spaced(data.train, 3))
    assert fits(data.to("cpu").train)
    assert not fits(replace(data.train, pixels=data.train.pixels.flip(0))), "the control"


def test_captions_come_from_the_cache_and_a_change_is_noticed(root, monkeypatch):
    first = load(root)
    with monkeypatch.context() as patch:
        patch.setattr(picture_reader, "read_labelled", None)
        assert texts(load(root).train) == texts(first.train)
    write(root / "captions.csv", [(file, f"{caption} new") for file, caption in PAIRS])
    again = load(root)
    assert all(text.endswith(" new") for text in texts(again.train))
    assert again.data_hash != first.data_hash
    (root / "captions.csv").unlink()
    plain = load(root)
    assert plain.train.extra == {}
    assert len({plain.data_hash, first.data_hash, again.data_hash}) == 3


def test_several_captions_of_a_picture_and_files_in_the_class_folders(root):
    (root / "captions.csv").unlink()
    for name in ("cat", "dog"):
        rows = [(file.removeprefix(f"{name}/"), text) for file, text in PAIRS if name in file]
        more = [(file, 'a "quoted",\n two-line  text é') for file, _ in rows]
        write(root / name / "Captions.csv", rows + more)
    data = load(root)
    assert fits(data.train)
    assert {text.split("\n")[1] for text in texts(data.train)} == {'a "quoted", two-line text é'}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,caption\ncat/9.png,a cat\n", "line 2: there is no picture cat/9.png"),
        ("file,caption\ncat/0.png, \n", "line 2: the caption is empty"),
        ("file,caption\n,a cat\n", "line 2: the file is empty"),
        ("file,caption\ncat/0.png,caf\udce9\n", "UTF-8"),
        ("file,caption\ncat/0.png,a cat\n", "11 of 12 pictures have no caption:\n  cat/1.png"),
    ],
)
def test_a_file_that_is_no_list_of_captions_is_refused(root, content, message):
    (root / "captions.csv").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as error:
        load(root)
    assert message in str(error.value)


CAPTIONS = {"task.name": "clip", "task.captions": "folder", "data.augment.mixup": 0.0}


def test_captions_are_retrieved_and_the_vocabulary_is_kept(tiny, pictures):
    with pytest.raises(ConfigError, match=r"task.captions"):
        train(tiny, "run", CAPTIONS)
    assert not Path("run").exists()
    words = {"dark": "a gloomy night", "bright": "a sunny day"}
    paths = sorted(pictures.glob("*/*/*.png"))
    rows = [(path.relative_to(pictures), words[path.parent.name]) for path in paths]
    write(pictures / "captions.csv", rows)
    changes = {"optim.lr": 0.01, "train.epochs": 12, "train.ema_decay": None}
    changes |= {"train.precision": "fp32", "model.drop_path": 0.0, "task.vocabulary_size": 8}
    done = train(tiny, "run", CAPTIONS | changes)
    text = load_module(done.folder, done.spec).text
    assert text.words() == ["a", "day", "gloomy", "night"], "the most frequent, then the first"
    assert done.result["test_image_to_text_r1"] > 0.85
    assert done.result["test_text_to_image_r1"] > 0.85
    assert done.result["test_zero_shot_accuracy"] < 0.9, "no caption has the names of the classes"
