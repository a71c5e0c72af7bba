"""The same pictures in each format of ``DATA_READERS``: splits, groups, names, damage."""

import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from tests.runner.data.own_pictures import CLASSES, Picture, draw_pictures, png
from vitcli.core.data.source import DataSet
from vitcli.core.spec import DATA_READERS, DataSpec
from vitcli.runner.data.cache import files_in_cache
from vitcli.runner.data.find import cache_root, check_name
from vitcli.runner.data.get import get_data
from vitcli.runner.data.labels import names_alike, refuse_names
from vitcli.runner.data.listing import group_of
from vitcli.runner.data.load import data_status, describe_data, load_data
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.study.plan import Options, saved_for_training

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def pictures() -> list[Picture]:
    return draw_pictures()


def file_name(row: int, picture: Picture) -> str:
    return f"{picture.group.replace(' ', '-')}_{row:02}.png"


def write_folder(root: Path, pictures: list[Picture]) -> str:
    for row, each in enumerate(pictures):
        folder = root / "ä folder" / each.split / CLASSES[each.label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name(row, each)).write_bytes(png(each.pixels))
    return f"imagefolder:{root / 'ä folder'}"


def write_csv(root: Path, pictures: list[Picture]) -> str:
    (root / "bïld").mkdir(parents=True)
    with (root / "lábels.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["label", "path", "group", "split"])
        for row, each in enumerate(pictures):
            name = f"bïld/{file_name(row, each)}"
            (root / name).write_bytes(png(each.pixels))
            table.writerow([CLASSES[each.label], name, each.group, each.split])
    return f"csv:{root / 'lábels.csv'}"


def arrays_of(pictures: list[Picture]) -> dict[str, Any]:
    found = defaultdict(list)
    for each in pictures:
        prefix = f"{each.split}_" if each.split else ""
        for name, value in zip(("labels", "groups", "images"), each[1:], strict=True):
            found[prefix + name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def write_npz(root: Path, pictures: list[Picture]) -> str:
    root.mkdir()
    path = root / "bildér.npz"
    np.savez_compressed(path, **arrays_of(pictures), class_names=np.array(CLASSES))
    return f"npz:{path}"


WRITERS: dict[str, Callable[[Path, list[Picture]], str]] = {
    "imagefolder": write_folder,
    "csv": write_csv,
    "npz": write_npz,
}
WITH_TEXTS = [*WRITERS]
for plugin in [name for name in DATA_READERS if name not in WRITERS]:
    writer = import_module(f"tests.plugins.{plugin}.writer")
    WRITERS[plugin] = writer.write_pictures
    WITH_TEXTS += [plugin] if hasattr(writer, "write_texts") else []
EVERY = pytest.mark.parametrize("prefix", DATA_READERS)
WITH_GROUPS = pytest.mark.parametrize("prefix", [p for p in WITH_TEXTS if p != "imagefolder"])


def load(name: str, **fields: Any) -> DataSet:
    return load_data(DataSpec(name=name, **fields), offline=True, seed=0)


def groups_in(data: DataSet, name: str, **fields: object) -> list[set[str]]:
    folder = list_pictures(name)
    group = dict(zip(folder.names, folder.groups, strict=True))
    parts = [data.train, data.test, *([data.val] if data.val else [])]
    return [{group[each] for each in part.names} for part in parts]


@pytest.mark.seam
@EVERY
def test_each_format_gives_the_same_images(prefix, pictures, tmp_path):
    folder = write_folder(tmp_path / "plain", pictures)
    plain, name = load(folder, val_split=6), WRITERS[prefix](tmp_path / "own", pictures)
    for _ in range(2):  # the second time from the cache
        data = load(name, val_split=6)
        assert (data.data_hash, data.class_names) == (plain.data_hash, CLASSES)
        assert [len(part) for part in (data.train, data.test, data.val)] == [24, 6, 6]
        assert len({*data.train.names, *data.test.names, *data.val.names}) == 36
    info = describe_data(DataSpec(name=name, val_split=6))
    assert (info.num_train, info.num_test, info.img_size) == (24, 6, (12, 10))
    unused = load(name)
    assert (len(unused.train), unused.val) == (24, None)
    status = data_status(name)
    assert (bool(status.decoded), status.kind == "missing") == (True, False)
    if prefix == "hf":
        assert get_data(name, offline=True).path == status.place
    cached = {each for each in cache_root().rglob("*") if each.is_file()}
    known = {*files_in_cache(name), *files_in_cache(folder)}
    assert {each.suffix for each in cached - known} == {".lock"}, "vitcli data rm removes all"
    assert load(name, resize=(6, 6), fit="pad").train.pixels[:, :, :, 0].sum() > 0


def write_texts(prefix: str, root: Path, texts: list[str]) -> str:
    files = [png(GENERATOR.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in texts]
    if prefix not in ("imagefolder", "csv", "npz"):
        return import_module(f"tests.plugins.{prefix}.writer").write_texts(root, files, texts)
    if prefix == "npz":
        images = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        return save(root, images=np.stack(images), labels=np.array(texts))
    lines = ["path,label"]
    for row, (text, file) in enumerate(zip(texts, files, strict=True)):
        name = f"{text if prefix == 'imagefolder' else 'all'}/{row}.png"
        (root / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "x" / name).write_bytes(file)
        lines.append(f'"{name}","{text}"' if "," in text else f"{name},{text}")
    (root / "x" / "x.csv").write_text("\n".join(lines))
    return f"imagefolder:{root / 'x'}" if prefix == "imagefolder" else f"csv:{root / 'x' / 'x.csv'}"


@pytest.mark.parametrize("prefix", WITH_TEXTS)
@pytest.mark.parametrize(
    ("texts", "classes", "noted", "problems"),
    [
        (["cat ", "dog"], ["cat", "dog"], "blanks", 0),
        (["cat\u00a0", "\u200bdog"], ["cat", "dog"], "blanks", 0),
        (["\u202acat\u202c", "dog\u2069"], ["cat", "dog"], "blanks", 0),
        (["cat", "CAT", "dog"], ["CAT", "cat", "dog"], "'CAT' and 'cat'", 1),
        (["cat", "\uff43at"], ["cat", "\uff43at"], "'cat' and", 1),
        (["ox cart", "ox  cart"], ["ox  cart", "ox cart"], "one name", 1),
        (["cat", "c\u00adat"], ["cat", "c\u00adat"], "one name", 1),
        (["\u2764", "\u2764\ufe0f"], ["\u2764", "\u2764\ufe0f"], "one name", 1),
        (["mid\u200dday", "midday"], ["midday", "mid\u200dday"], "one name", 1),
        (["KED\u0130", "kedi"], ["KED\u0130", "kedi"], "one name", 1),
        (["KAPI", "kap\u0131"], ["KAPI", "kap\u0131"], "one name", 1),
        (["Grevy's", "Grevy\u2019s"], ["Grevy's", "Grevy\u2019s"], "one name", 1),
        (["t-shirt", "T\u2011shirt"], ["T\u2011shirt", "t-shirt"], "one name", 1),
        (["1", "1.0", "2"], ["1", "1.0", "2"], "one number", 0),
        (["1", "01"], ["01", "1"], "one number", 0),
        (["10 %", "10%", "1 0"], ["1 0", "10 %", "10%"], "one name", 1),
        (["1,5", "1.5", "15e-1"], ["1,5", "1.5", "15e-1"], "2 such pairs", 0),
        (["1 1", "11", "1,000"], ["1 1", "1,000", "11"], "", 0),
        (['{"kind": 1}', "a"], ["a", '{"kind": 1}'], "one label", 0),
        (["?", "a"], ["?", "a"], "no label", 0),
        (["-1.0", "1"], ["-1.0", "1"], "no label", 0),
        (["-1", "1"], ["-1", "1"], "no label", 0),
        (["#N/A", "a"], ["#N/A", "a"], "no label", 0),
        (["ox_cart", "ox cart"], ["ox cart", "ox_cart"], "one name", 1),
        (["#NV", "a"], ["#NV", "a"], "no label", 0),
        (["NaN", "a"], ["NaN", "a"], "no label", 0),
        (["cat", "cats"], ["cat", "cats"], "", 0),
        (["-x", "'-x"], ["'-x", "-x"], "", 0),
        (["7", "7|x"], ["7", "7|x"], "one label", 0),
        (["a", "b", "a;b"], ["a", "a;b", "b"], "one label", 0),
        (["['a']", "['a'; 'b']"], ["['a']", "['a'; 'b']"], "one label", 0),
        (["a", "b", "a; c"], ["a", "a; c", "b"], "", 0),
        ([" ", "a"], [], "", 0),
        (["cat", "cat ", "dog", "\u00a0dog", "cat\u00a0"], ["cat", "dog"], "blanks", 0),
    ],
)  # fmt: skip
def test_labels_mean_the_same_in_each_format(prefix, texts, classes, noted, problems, tmp_path):
    if prefix == "imagefolder" and ("cat " in texts[1:] or "#N/A" in texts):
        return  # no folder has two such names of a class, or a slash in its name
    name = write_texts(prefix, tmp_path, texts * 6)
    if not classes:
        with pytest.raises(InputError, match=r"class|label"):
            load(name)
        return
    told: list[str] = []
    data = load_data(DataSpec(name=name), on_message=told.append)
    assert sorted(data.class_names) == sorted(classes)
    assert any(noted in text for text in told if text.startswith("note")) == bool(noted)
    assert len(names_alike(data.class_names)) == problems


def test_the_names_of_classes_can_be_read_back_or_are_refused():
    """A run keeps them in its config.yaml."""
    long = "\U0001f981" * 30
    texts = [[f"{row}" for row in range(42_000)], [f"{long}{row}" for row in range(1050)]]
    for names in texts:
        refuse_names(names)
        both = {"data": {"class_names": names}, "task": {"class_names": [*names]}}
        assert Document(dump(both), "x").data == both
        with pytest.raises(ValueError, match="characters"):
            refuse_names([*names, *(f"{name}+" for name in names)])


@pytest.mark.parametrize(("prefix", "grouped"), [("npz", 0), ("npz", 9), ("csv", 9)])
def test_what_is_held_out_does_not_depend_on_the_size(prefix, grouped, pictures, tmp_path):
    alone = [p._replace(split="", group=p.group * (i < grouped)) for i, p in enumerate(pictures)]
    name = WRITERS[prefix](tmp_path / "own", alone)
    assert {*load(name, resize=6).test.names} == {*load(name, resize=12).test.names}


@WITH_GROUPS
def test_groups_are_not_divided(prefix, pictures, tmp_path):
    alone = [each._replace(split="") for each in pictures]
    name = WRITERS[prefix](tmp_path / "own", alone)
    data = load(name, val_split=6)
    train, test, val = groups_in(data, name)
    assert len(train) + len(test) + len(val) == len(train | test | val)
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    assert data.val.labels.bincount().tolist() == [2, 2, 2]
    tested = []
    for seed in range(3):
        part = load_data(DataSpec(name=name, folds=3), seed=seed)
        train, test = groups_in(part, name)
        assert not train & test
        tested += part.test.names
    assert sorted(tested) == sorted(list_pictures(name).names)


@pytest.mark.parametrize(
    ("fields", "divides"),
    [({"folds": 2}, True), ({"val_split": 9}, True), ({"val_split": 6}, False)],
)
def test_groups_are_part_of_the_hash_where_they_divide(fields, divides, pictures, tmp_path):
    other = [each._replace(group=f"{each.label} {row % 5}") for row, each in enumerate(pictures)]
    none = [each._replace(group="") for each in pictures]
    hashes = []
    for kind, prefix in ((pictures, "csv"), (pictures, "npz"), (other, "csv"), (none, "csv")):
        name = WRITERS[prefix](tmp_path / str(len(hashes)), kind)
        hashes.append(load(name, **fields).data_hash)
    plain = load(write_folder(tmp_path / "plain", pictures), **fields).data_hash
    assert [each == plain for each in hashes] == [*[not divides] * 3, True]
    assert (hashes[0] == hashes[1], hashes[0] == hashes[2]) == (True, not divides)
    trained = DataSpec(name=f"csv:{tmp_path / '0' / 'lábels.csv'}", **fields)
    known = saved_for_training(tmp_path / "none", Options(offline=True))._data_hash_of
    assert known
    assert known(trained) == hashes[0], "a saved trial is compared with the same hash"


WRITTEN = [
    ("5", "5.0", "nan"),
    ("p0", " p0\u00a0", "NA"),
    ("p0", "p0\u200b", "<NA>"),
    ("e\u0301", "\xe9", "None"),
]
"""A group as training pictures have it, as test pictures of this person do, and no group."""


@WITH_GROUPS
@pytest.mark.parametrize(("trained", "tested", "empty"), WRITTEN)
def test_a_group_is_the_same_however_it_is_written(
    prefix, trained, tested, empty, pictures, tmp_path
):
    written = {"train": trained, "test": tested, "valid": empty}
    torn = [each._replace(group=written[each.split]) for each in pictures]
    name = WRITERS[prefix](tmp_path / "own", torn)
    groups = group_of(list_pictures(name), None)
    assert [*groups.values()] == ["\xe9" if "e" in trained else trained] * 30, "others in no group"


@WITH_GROUPS
def test_a_split_that_divides_a_group_is_a_leak(prefix, pictures, tmp_path):
    group = pictures[0].group
    torn = [each._replace(group=group) if each.split == "test" else each for each in pictures]
    name = WRITERS[prefix](tmp_path / "own", torn)
    leaks = load(name).leaks
    assert sum(f"(group '{group}')" in leak for leak in leaks) == len(leaks) == 6


def test_a_group_is_what_the_names_of_pictures_share(pictures, tmp_path):
    alone = [each._replace(split="train") for each in pictures if each.split == "train"]
    name = write_folder(tmp_path / "own", alone)
    flat = f"{name}/train"
    data = load(flat, group=r"(.*)_\d+\.png", val_split=6)
    names = (part.names for part in (data.train, data.test, data.val))
    sides = [{name.rpartition("_")[0] for name in part} for part in names]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 12
    torn = [each._replace(group=f"{each.label} {row % 4}") for row, each in enumerate(pictures)]
    both = write_folder(tmp_path / "both", torn)
    assert load(both, group=r"(.*)_\d+\.png").leaks, "train/ and test/ are no part of a group"
    with pytest.raises(InputError, match=r"data\.group: 'cow' does not match '.*png'"):
        load(flat, group="cow")
    with pytest.raises(ValidationError, match="not a regular expression"):
        DataSpec(name=flat, group="(")
    with pytest.raises(ValidationError, match="group is for your own pictures"):
        DataSpec(group="x")


@pytest.mark.parametrize("prefix", [each for each in WRITERS if each != "imagefolder"])
@pytest.mark.parametrize("harm", ["cut", "empty", "gone"])
def test_damage_is_one_line_that_names_the_file(prefix, harm, pictures, tmp_path):
    name = WRITERS[prefix](tmp_path / "own", pictures)
    path = Path(name.partition(":")[2])
    path = sorted(path.glob("*.parquet"))[0] if path.is_dir() else path
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3 if harm == "cut" else 0])
    if harm == "gone":
        [each.unlink() for each in path.parent.glob(f"*{path.suffix}")]
    if (prefix, harm) == ("csv", "cut"):
        path.write_bytes(content[: content.rindex(b";")])
    with pytest.raises(InputError) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "own") in str(caught.value)
    assert not [*(cache_root() / "unpacked").glob("unpacking-*")]


def save(tmp_path: Path, **arrays: Any) -> str:
    np.savez(tmp_path / "x.npz", **arrays)
    return f"npz:{tmp_path / 'x.npz'}"


def test_the_list_of_arrays_is_read_once_however_many_there_are(tmp_path, monkeypatch):
    name, opened = save(tmp_path, **{f"image{n}": np.zeros(3) for n in range(99)}), list[object]()
    read = zipfile.ZipFile.__init__
    monkeypatch.setattr(
        zipfile.ZipFile, "__init__", lambda *a, **options: opened.append(a) or read(*a, **options)
    )
    with pytest.raises(InputError, match="needed are images"):
        list_pictures(name)
    assert len(opened) == 1


GENERATOR = np.random.default_rng(1)
LABELS = np.arange(20) % 2


@pytest.mark.parametrize(
    ("shape", "chans"),
    [((20, 9, 8), 1), ((20, 9, 8, 3), 3), ((20, 3, 9, 8), 3), ((20, 64, 70, 66), 64)],
)  # fmt: skip
def test_channels_are_found_in_arrays(shape, chans, tmp_path):
    images = GENERATOR.integers(0, 256, shape, dtype=np.uint8)
    data = load(save(tmp_path, images=images, labels=LABELS[:, None]))
    assert (data.in_chans, data.img_size) == (chans, (70, 66) if chans == 64 else (9, 8))
    row = int(data.train.names[0].rpartition("/")[2])
    own = images[row][..., None] if images.ndim == 3 else images[row]
    own = own.transpose(2, 0, 1) if own.shape[0] != chans else own
    assert torch.equal(data.train.pixels[0], torch.from_numpy(own))


def test_16_bits_are_divided_by_257_in_arrays_and_in_files(tmp_path):
    wide = GENERATOR.integers(0, 2**16, (20, 9, 8), dtype=np.uint16)
    wide[:, 0, 0], wide[:, 0, 1] = 65535, 128
    test = {"x_test": wide[:4] // 2, "y_test": LABELS[:4]}
    unsigned = LABELS.astype("u8")  # labels may be integers of any kind
    data = load(save(tmp_path, x_train=wide, y_train=unsigned, **test))
    assert data.train.pixels[:, 0, 0, :2].unique(dim=0).tolist() == [[255, 0]]
    for row, label in enumerate(LABELS):
        folder = tmp_path / "pictures" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(wide[row]).save(folder / f"{row}.{'tif' if row % 3 else 'png'}")
    files = load(f"imagefolder:{tmp_path / 'pictures'}")
    known = {tuple(image[0].flatten().tolist()) for image in data.train.pixels}
    assert {tuple(image[2].flatten().tolist()) for image in files.train.pixels} <= known


@pytest.mark.parametrize(
    ("dtype", "high", "is_noted"), [("u2", 256, True), ("u1", 2, True), ("u1", 256, False)]
)
def test_arrays_without_brightness_are_noted(dtype, high, is_noted, tmp_path):
    images = GENERATOR.integers(0, high, (20, 9, 8)).astype(dtype)
    told: list[str] = []
    load_data(DataSpec(name=save(tmp_path, images=images, labels=LABELS)), on_message=told.append)
    assert any("black" in text or "data.levels=255" in text for text in told) == is_noted


NAMED = {"images": np.zeros((4, 3, 3), "u1"), "labels": np.arange(4) % 2}
SPLIT = {f"{split}_{name}": NAMED[name] for split in ("train", "test") for name in NAMED}


def code_points(first: int) -> np.ndarray:
    return np.array([first, 65], "u4").view("U1")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.zeros((4, 3, 3), "u1")}, "has no labels"),
        ({"pictures": np.zeros(3)}, "has pictures; needed are images and labels"),
        ({f"p{n}": np.zeros(3) for n in range(99)}, r"has p0, .*p19, \.\.\.; needed are images"),
        ({"images": np.zeros((4, 3, 3)), "labels": np.arange(4)}, "is float64"),
        ({"images": np.zeros((4, 3), "u1"), "labels": np.arange(4)}, "needed are uint8"),
        ({"images": np.zeros((4, 65, 65, 65), "u1"), "labels": np.arange(4)}, "at most 64"),
        ({"images": np.zeros((4, 3, 3), "u1"), "labels": np.arange(3)}, "but 3 in labels"),
        ({"images": np.zeros((4, 3, 3), "u1"), "labels": np.eye(4)}, "one an image"),
        ({"images": np.zeros((4, 3, 3), "u1"), "labels": np.array([1, 2, 1, 2])}, "from 0"),
        ({"images": np.zeros((4, 3, 3), "u1"), "labels": np.zeros(4, int)}, "two are needed"),
        ({"images": np.zeros((4, 3, 3), object), "labels": np.arange(4)}, "Python objects"),
        ({"test_images": np.zeros((4, 3, 3), "u1"), "test_labels": np.arange(4)}, "'train'"),
        (NAMED | {"labels": np.array([0.5, 1, 0, 1])}, "labels is float64"),
        (SPLIT | {"test_labels": np.arange(4)}, "class 2 has no training image"),
        (NAMED | {"class_names": np.array(["a", "a "])}, "two classes"),
        (NAMED | {"class_names": np.array([["a"], ["b"]])}, "class_names is"),
        (NAMED | {"class_names": np.array([3, 4])}, "class_names is"),
        (NAMED | {"class_names": np.array(["", "a"])}, "empty"),
        (NAMED | {"class_names": code_points(0x110000)}, "code point"),
        (NAMED | {"groups": code_points(0xD800).repeat(2)}, "code point"),
        ({"images": np.zeros((2, 10_001, 10_000), "u1"), "labels": np.arange(2)}, "megapixels"),
    ],
)  # fmt: skip
def test_unfit_arrays_are_refused_in_one_line(arrays, said, tmp_path):
    with pytest.raises(InputError, match=said) as caught:
        load(save(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def rewrite(path: Path, kind: int = zipfile.ZIP_STORED, **changed: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w", kind) as archive:
        for member, content in parts.items():
            archive.writestr(member, changed.get(member.removesuffix(".npy"), content))


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compressed_arrays_are_refused_in_one_line(kind, tmp_path):
    images = GENERATOR.integers(0, 256, (20, 9, 8), dtype=np.uint8)
    name, path = save(tmp_path, images=images, labels=LABELS), tmp_path / "x.npz"
    rewrite(path, kind)
    whole = path.read_bytes()
    path.write_bytes(whole[:80] + bytes(byte ^ 0x5A for byte in whole[80:140]) + whole[140:])
    with pytest.raises(InputError, match="cannot be read"):
        load(name)


def test_pictures_that_have_moved_are_found_by_their_folder(pictures, tmp_path):
    name = write_csv(tmp_path / "own", pictures)
    before = load(name)
    (tmp_path / "own").rename(tmp_path / "moved")
    after = load_data(DataSpec(name=name), data_dir=tmp_path / "moved")
    assert after.data_hash == before.data_hash
    path = tmp_path / "moved" / "lábels.csv"
    with pytest.raises(ConfigError, match=r"did you mean 'csv:.*lábels\.csv'\?"):
        check_name(str(path))


@pytest.mark.parametrize("header", [b"(9, 9, 9)", b"(4, 3, 3,", b"(4, 3,9,,", b"-" * 9000 + b"1"])
def test_an_array_has_the_bytes_that_its_header_promises(header, tmp_path):
    name = save(tmp_path, images=np.zeros((4, 3, 3), np.uint8), labels=np.arange(4))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        huge = archive.read("images.npy").replace(b"(4, 3, 3)", header)
    length = int.from_bytes(huge[8:10], "little") + len(header) - len(b"(4, 3, 3)")
    huge = huge[:8] + length.to_bytes(2, "little") + huge[10:]
    rewrite(tmp_path / "x.npz", images=huge)
    with pytest.raises(InputError, match="images cannot be read"):
        load(name)
