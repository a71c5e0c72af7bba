"""One's own pictures in class folders: which folders count, and what is read of them."""

import os
import threading
import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image

from tests.runner.data.conftest import add, load, spec
from vitcli.core.data.source import DataSet
from vitcli.runner.data import picture_reader
from vitcli.runner.data.folder import list_folder, picture_files
from vitcli.runner.data.load import data_status, describe_data, load_data
from vitcli.runner.errors import InputError, ResourceError
from vitcli.runner.limits import available_memory

pytestmark = pytest.mark.usefixtures("cache")


def test_pictures_of_one_size_keep_it_and_others_are_read_at_32_by_each_fit(root):
    data = load(root)
    assert data.class_names == ("cat", "dog")
    assert data.train.pixels.shape == (16, 3, 20, 20)
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    with Image.open(root / "test" / "dog" / "20-0.png") as image:
        wanted = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    dogs = data.test.pixels[data.test.labels == 1]
    assert any(torch.equal(dog, wanted) for dog in dogs)
    Image.new("RGBA", (50, 70)).save(root / "train" / "cat" / "tall.webp", lossless=True)
    Image.new("L", (9, 9)).save(root / "train" / "cat" / "grey.gif")
    assert load(root).train.pixels.shape == (18, 3, 32, 32)
    assert load(root, resize=[16, 24]).img_size == (16, 24)
    (decoded,) = [p for p in data_status(f"imagefolder:{root}").decoded if "16x24" in p.name]
    assert decoded.suffix == ".safetensors"
    add(root / "train" / "cat", 1, np.random.default_rng(1), (20, 40))
    assert len({load(root, fit=fit).data_hash for fit in ("crop", "pad", "crop", "stretch")}) == 3


SIDE = (
    *("IMG_1.AAE", "a.xmp", "b.MOV", "notes.xlsx", "a.jpg.dop", "README.txt", "a.json", "a.jgw"),
    *("@eaDir/t.jpg", "#recycle/t.jpg", "__MACOSX/._a.jpg", "P.lrdata/t.jpg"),
    *("x.MP~2", "b.cot", "F.photolibrary/t.jpg"),
)
SILENT = (".DS_Store", "Thumbs.db", "Icon\r", "._a.jpg", ".thumbnails/t.jpg")


@pytest.mark.parametrize("place", ["train/cat", "train/cat/2024", "train", "."])
def test_files_and_folders_that_phones_and_networks_leave_are_no_pictures(root, place):
    before, read = load(root).data_hash, picture_files([str(root)])
    files = [name for name in (*SIDE, *SILENT) if place.startswith("train/") or "/" in name]
    for name in files:
        path = root / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((root / "train" / "cat" / "20-0.png").read_bytes())
    if place.endswith("2024"):
        add(root / place, 1, np.random.default_rng(1))
    data, told = load(root, messages := [""]), list[str]()
    assert (data.data_hash == before) == (not place.endswith("2024"))
    assert data.class_names == ("cat", "dog")
    assert len(picture_files([str(root)], told.append)) == len(read) + place.endswith("2024")
    for note in (" ".join(messages), " ".join(told)):
        shown = {name.split("/")[0] if "/" in name else name[-4:].lower() for name in files}
        named = {name for name in shown if name in note}
        assert len(named) >= min(7, len({*files} & {*SIDE}))
        assert not named & {"Thumbs.db", ".thumbnails", ".ds_store"}


def test_empty_classes_and_loose_pictures_are_counted(root):
    (root / "train" / ".cache").mkdir()
    (root / "train" / "bird").mkdir()
    (root / "train" / "crab" / "inner").mkdir(parents=True)
    add(root / "train", 2, np.random.default_rng(2))
    data = load(root, messages := [""])
    assert (data.class_names, len(data.train)) == (("cat", "dog"), 16)
    for told in ("bird has no pictures", "crab has folders but no", "ignored 2 pictures"):
        assert any(told in text for text in messages), told


@pytest.mark.parametrize("has_test", [True, False])
def test_pictures_in_sub_folders_belong_to_their_class_in_every_command(root, has_test, tmp_path):
    if not has_test:
        (root / "test").rename(tmp_path / "away")
        root = (root / "train").rename(tmp_path / "flat")
    cats = root / "train" / "cat" if has_test else root / "cat"
    before, read = load(root).data_hash, {*picture_files([str(root)])}
    for i, path in enumerate(sorted(cats.iterdir())[:6]):
        inner = cats / f"20{i}" / "Mai"
        inner.mkdir(parents=True)
        path.rename(inner / path.name)
    data = load(root, messages := [""])
    assert data.data_hash == before, "the split is by content"
    assert any("6 pictures in sub-folders of a class" in text for text in messages)
    folder = list_folder(root)
    assert {*folder.paths} == {*picture_files([str(root)])}
    assert len(read) == len(folder.paths)
    for name in ("cat", "dog"):  # no picture is directly in its class any more
        inner = cats.parent / name / "200"
        inner.mkdir(exist_ok=True)
        for path in (path for path in inner.parent.iterdir() if path.is_file()):
            path.rename(inner / path.name)
    assert load(root).data_hash == before


def test_unreadable_files_are_listed_and_counted(root):
    (root / "train" / "cat" / "ä b.png").write_text("hello")
    os.mkfifo(root / "test" / "dog" / "b.png")
    with pytest.raises(InputError) as caught:
        load(root)
    lines = str(caught.value).splitlines()
    assert "train/cat/ä b.png" in lines[1]
    assert "test/dog/b.png" in lines[2]
    for i in range(25):
        (root / "train" / "cat" / f"{i}.png").write_text("hello")
    with pytest.raises(InputError, match=r"27 of 47 .*(\n  t.*){20}\n  \.\.\. and 7 more\n"):
        load(root)


@pytest.mark.parametrize("has_test", [True, False])
def test_skip_bad_gives_the_images_that_remain_if_the_files_are_deleted(root, tmp_path, has_test):
    if not has_test:
        (root / "test").rename(tmp_path / "away")
    bad = root / "train" / "cat" / "a.png"
    bad.write_text("hello")
    for _ in range(2):  # the second time from the cache
        data = load(root, messages := [""], skip_bad=True)
        assert len([text for text in messages if "train/cat/a.png" in text]) == 1
        with pytest.raises(InputError, match=r"a\.png"):
            load(root)
    bad.unlink()
    assert load(root).data_hash == data.data_hash


@pytest.mark.parametrize("where", ["train/cat", "test/*", "val/*"])
def test_skip_bad_refuses_a_class_or_a_split_without_a_picture(root, where):
    add(root / "val" / "cat", 2, np.random.default_rng(1))
    bad = root / "val" / "cat" / "20-0.png"
    bad.write_text("hello")
    load(root, messages := [""], skip_bad=True, val_split=2)
    assert any("1 of 22" in text for text in messages)
    for path in root.glob(f"{where}/*.png"):
        path.write_text("hello")
    with pytest.raises(InputError, match="'cat'" if "cat" in where else where[:3]):
        load(root, skip_bad=True, val_split=2)


@pytest.mark.parametrize(
    ("moved", "link", "added", "named"),
    [
        ("train/dog", None, None, "PATH/train/<class>"),
        ("train", None, None, "PATH/train/<class>"),
        (".", None, None, "PATH/train/<class>"),
        (None, "train/bird", None, "bird"),
        (None, None, "test/bird/1.png", "bird"),
        ("test", None, "test/.empty", "pets/test"),
        ("test", None, "test/1.png", "pets/test"),
        ("test", "test", None, "pets/test"),
        (None, None, "train/dog/Test/1.png", "dog/Test looks like a split .*PATH/train/<class>"),
    ],
)
def test_a_folder_without_classes_with_a_split_in_one_or_a_link_to_nowhere_is_refused(
    root, tmp_path, moved, link, added, named
):
    if moved:
        (root / moved).rename(tmp_path / "away")
    if link:
        (root / link).symlink_to(root / "nowhere")
    if added:
        (root / added).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(root / added, "PNG")
    with pytest.raises(InputError, match=named):
        load(root)


def test_folders_of_class_folders_named_like_splits_are_no_classes(root):
    (root / "test").rename(root / "val_set")
    (root / "train").rename(root / "Trainingsdaten")
    with pytest.raises(InputError, match="Trainingsdaten and val_set look like splits"):
        load(root)
    (root / "val_set").rename(root / "valley")
    load(root)


def test_the_second_start_reads_nothing_and_a_change_is_noticed(root, monkeypatch):
    first = load(root)
    read = picture_reader.read_labelled
    monkeypatch.setattr(picture_reader, "read_labelled", None)
    assert load(root).data_hash == first.data_hash
    os.utime(root / "train" / "cat" / "20-0.png", (1, 1))
    with pytest.raises(TypeError):
        load(root)
    monkeypatch.setattr(picture_reader, "read_labelled", read)
    monkeypatch.setattr(picture_reader, "LARGE_FILE", 0)  # several threads read alike
    assert load(root).data_hash == first.data_hash


def test_exchanged_classes_are_noticed_if_sizes_and_times_are_equal(root):
    for path in root.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    for path in root.rglob("*.bmp"):
        os.utime(path, (10**9, 10**9))
    before = load(root)
    cat, dog, away = (root / "train" / name for name in ("cat", "dog", "away"))
    for old, new in ((cat, away), (dog, cat), (away, dog)):
        old.rename(new)
    after = load(root)
    assert after.data_hash != before.data_hash
    dogs = before.train.pixels[before.train.labels == 1]
    assert torch.equal(after.train.pixels[after.train.labels == 0], dogs)


def test_after_an_interrupted_reading_other_pictures_can_be_read(root, monkeypatch):
    def interrupt(text: str) -> None:
        if text.startswith("reading pictures"):
            raise KeyboardInterrupt

    monkeypatch.setattr(picture_reader, "REPORT_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        load_data(spec(root), on_message=interrupt)
    thread = threading.Thread(target=load, args=(root,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert caught.tb, "the frames of the reading are still there"


def test_free_memory_is_that_of_the_strictest_control_group(tmp_path):
    for name, most in (("inner", "max"), ("outer", "1000")):
        (tmp_path / name).mkdir()
        values = {"max": most, "current": "900", "stat": "anon 500\ninactive_file 300\n"}
        for key, value in values.items():
            (tmp_path / name / f"memory.{key}").write_text(value)
    groups = [tmp_path / name for name in ("inner", "outer", "none")]
    assert available_memory(groups) == 1000 - 900 + 300


def test_too_large_names_a_smaller_resize(root, monkeypatch):
    free = 20 * 3 * 3 * 900
    monkeypatch.setattr("vitcli.runner.data.arrays.available_memory", lambda: free)
    with pytest.raises(ResourceError, match=r"data\.resize=24"):
        load(root, resize=1000)


def test_a_folder_is_described_by_its_listing(root, tmp_path, monkeypatch):
    monkeypatch.setattr(picture_reader, "read_labelled", None)
    info = describe_data(spec(root))
    assert (info.img_size, info.in_chans, info.class_names) == ((20, 20), 3, ("cat", "dog"))
    assert (info.num_train, info.num_test) == (16, 4)
    (root / "test").rename(tmp_path / "away")
    assert describe_data(spec(root, resize=8)).num_test == 3
    add(root / "train" / "cat", 1, np.random.default_rng(0), (5, 5))
    assert describe_data(spec(root)).img_size == (32, 32)


def test_a_name_in_two_forms_of_unicode_or_with_blanks_is_one_class(root):
    nfc, nfd = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    (root / "train" / "cat").rename(root / "train" / nfd)
    (root / "test" / "cat").rename(root / "test" / f"{nfc} ")
    data = load(root, class_names=(nfc, "dog"))
    assert data.class_names == (nfc, "dog"), "a run keeps the form that it has"
    assert load(root).class_names == (nfd, "dog")
    add(root / "train" / f"{nfc} ", 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="one name in two forms"):
        load(root)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_class_whose_name_is_not_utf8_is_refused_and_a_file_is_read(root, split):
    cats = root / split / "cat"
    next(cats.iterdir()).rename(cats / "\udce9.png")
    assert len(load(root).train) == 16
    cats.rename(root / split / "caf\udce9")
    with pytest.raises(InputError, match="not UTF-8"):
        load(root)


def test_predict_collects_the_files_that_train_reads(root):
    dogs = root / "train" / "dog"
    (dogs / "20-0.png").rename(dogs / "0.jfif")
    (dogs / "20-1.png").rename(dogs / "1")
    (root / "train" / "linked").symlink_to(root / "test" / "cat")
    (root / "train" / "linked" / "loop").symlink_to(root / "train")
    folder = list_folder(root)
    read = {os.path.realpath(path) for path in folder.paths[: folder.num_train]}
    assert len(read) == folder.num_train, "none twice"
    assert {os.path.realpath(path) for path in picture_files([str(root / "train")])} == read


@pytest.mark.parametrize("name", ["validation", "testing", "Test"])
def test_a_test_set_may_have_another_name(root, name):
    (root / "train").rename(root / "Train")
    (root / "test").rename(root / name)
    data = load(root, messages := [""])
    assert (len(data.train), len(data.test)) == (16, 4)
    assert any(f"{name} is the test set" in text for text in messages) == (name != "Test")


def test_what_is_beside_the_splits_is_not_silently_dropped(root):
    generator = np.random.default_rng(1)
    for name in ("valid/cat", "training/cat", "more", ""):
        add(root / name, 1, generator)
    (root / "empty").mkdir()
    folder = list_folder(root)
    assert (folder.num_train, folder.num_test, folder.num_val) == (16, 4, 1)
    *unused, loose = [note.partition(" is not used")[0] for note in folder.notes]
    assert unused == [str(root / name) for name in ("training", "more")]
    assert loose == f"{root}: ignored 1 picture beside train"
    assert load(root).val is None
    for wanted in (1, 0.2):
        data = load(root, val_split=wanted)
        assert (len(data.train), data.val.labels.tolist(), data.leaks) == (16, [0], ())
    (copied,) = (root / "valid" / "cat").iterdir()
    for name in ("test/cat/20-0.png", "train/dog/20-1.png"):
        copied.write_bytes((root / name).read_bytes())
        assert load(root, val_split=1).leaks == (f"valid/cat/{copied.name} = {name}",)


@pytest.mark.parametrize("name", ["test", "train", "Validation"])
def test_a_class_may_have_the_name_of_a_split(root, name):
    generator = np.random.default_rng(1)
    flat = root / "flat"
    for each in ("cat", "dog", name):
        add(flat / each, 3, generator)
    folder = list_folder(flat)
    assert folder.class_names == tuple(sorted(["cat", "dog", name]))
    assert (folder.num_train, folder.num_test) == (9, None)
    add(flat / "train" / "cat", 1, generator)
    if name != "train":  # then the classes are in train
        with pytest.raises(InputError, match="train needs a folder"):
            list_folder(flat)


def test_validation_pictures_that_are_known_stay_and_the_same_share_of_new_ones_joins(root):
    usual = load(root, val_split=0.25)
    names = sorted({*usual.train.names, *usual.val.names})

    def kept(sides: dict[str, str]) -> DataSet:
        known = {usual.contents[name]: side for name, side in sides.items()}
        return load_data(spec(root, val_split=0.25), kept=known)

    same = kept(dict.fromkeys(usual.val.names, "val") | dict.fromkeys(usual.train.names, "train"))
    assert (same.data_hash, {*same.val.names}) == (usual.data_hash, {*usual.val.names})
    others = [name for name in names if name not in usual.val.names][:2]
    known = dict.fromkeys(names[:10], "train") | dict.fromkeys(others, "val")
    data = kept(known)
    assert {*others} < {*data.val.names}
    assert len({*data.val.names} - {*known}) == round(0.25 * len({*names} - {*known}))
    assert not {n for n, side in known.items() if side == "train"} & {*data.val.names}
    assert data.data_hash != usual.data_hash
    cats = {name: "val" if "cat" in name else "train" for name in names}
    assert {*kept(cats).train.labels.tolist()} == {0, 1}, "each class keeps a training picture"
    seen = kept(dict.fromkeys(names, "train"))
    assert {*seen.val.names} == {*usual.val.names}, "none is new"
