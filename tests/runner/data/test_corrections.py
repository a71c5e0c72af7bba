"""Lists of pictures: corrections of a folder, and CSV files whose errors name the line."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.runner.data.conftest import add, load, spec
from vitcli.runner.data import picture_reader
from vitcli.runner.data.formats.npz import list_arrays
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.errors import InputError

pytestmark = pytest.mark.usefixtures("here", "cache")


def write(*lines: str, path: str = "mine.csv") -> str:
    Path(path).write_text("\n".join(["file,label", *lines]), encoding="utf-8")
    return path


def test_the_images_are_those_of_a_corrected_folder(root):
    odd = root / "train" / "dog" / 'ä, "b".png'
    (root / "train" / "dog" / "20-3.png").rename(odd)
    before = load(root)
    csv = write('"train/dog/ä, ""b"".png",cat', "train/cat/20-1.png,", "test/cat/20-0.png,dog")
    messages: list[str] = []
    data = load(root, messages, corrections=csv)
    info = describe_data(spec(root, corrections=csv))
    assert (info.num_train, info.num_test) == (len(data.train), len(data.test)) == (15, 4)
    odd.rename(root / "train" / "cat" / "moved.png")
    (root / "train" / "cat" / "20-1.png").unlink()
    (root / "test" / "cat" / "20-0.png").rename(root / "test" / "dog" / "moved.png")
    wanted = load(root)
    assert data.data_hash == wanted.data_hash != before.data_hash
    assert (data.mean, data.std) == (wanted.mean, wanted.std)
    names = dict(zip(data.train.names, data.train.labels.tolist(), strict=True))
    assert names['train/dog/ä, "b".png'] == 0
    assert "train/cat/20-1.png" not in names


def test_corrections_read_no_picture_again_and_move_none_into_the_test_set(
    root, tmp_path, monkeypatch
):
    (root / "test").rename(tmp_path / "away")
    before = load(root)
    monkeypatch.setattr(picture_reader, "read_labelled", None)
    first, *others = before.train.names
    data = load(root, corrections=write(f"{first},", f"{others[0]},dog"))
    assert {*data.train.names} == {*others}
    assert {*data.test.names} == {*before.test.names}


def test_a_second_copy_in_the_training_set_is_still_a_leak(root):
    for name in ("train/cat/a.png", "test/cat/b.png"):
        (root / name).write_bytes((root / "train" / "cat" / "20-0.png").read_bytes())
    (leak,) = load(root).leaks
    (other,) = load(root, corrections=write(f"{leak.partition(' = ')[2]},")).leaks
    assert leak != other
    left_out = write("train/cat/a.png,", "train/cat/20-0.png,")
    assert load(root, corrections=left_out).leaks == ()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["train/cat/20-0.pn,"], r"line 2: no picture .*did you mean 'train/cat/20-0.png'"),
        (["train/cat/20-0.png,dogs"], r"line 2: unknown class 'dogs'; did you mean 'dog'"),
        (["train/cat/20-0.png,"] * 2, "line 3: .* was named before"),
        ([f"train/cat/20-{i}.png," for i in range(8)], "no training picture of 'cat'"),
        ([f"test/{c}/20-{i}.png," for c in ("cat", "dog") for i in (0, 1)], "no test picture"),
        ([f"val/{c}/20-0.png," for c in ("cat", "dog")], "no validation picture"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(root, lines, said):
    generator = np.random.default_rng(3)
    for name in ("cat", "dog"):
        add(root / "val" / name, 1, generator)
    with pytest.raises(InputError, match=said):
        load(root, corrections=write(*lines), val_split=2)


def test_a_name_may_have_any_form_of_unicode_if_it_is_that_of_one_picture(root):
    folder, csv = root / "train" / "cat", write("train/cat/\xc5.png,")
    (folder / "20-0.png").rename(folder / "A\u030a.png")
    assert len(load(root, corrections=csv).train) == 15
    (folder / "20-1.png").rename(folder / "\u212b.png")
    with pytest.raises(InputError, match="line 2: 2 pictures"):
        load(root, corrections=csv)


def test_a_file_that_has_moved_is_found_beside_the_pictures(root, tmp_path):
    data = load(root, corrections=write("train/cat/20-1.png,"))
    given = spec(root, corrections="mine.csv")
    moved = tmp_path / "moved"
    root.rename(moved)
    (tmp_path / "elsewhere").mkdir()
    os.chdir("elsewhere")
    with pytest.raises(InputError, match=r"type: cp FILE .*/moved/mine.csv"):
        load_data(given, data_dir=moved)
    (tmp_path / "mine.csv").rename(moved / "mine.csv")
    told: list[str] = []
    found = load_data(given, data_dir=moved, on_message=told.append)
    assert found.data_hash == data.data_hash
    assert any(str(moved / "mine.csv") in text for text in told)
    (moved / "lists").mkdir()
    (moved / "mine.csv").rename(moved / "lists" / "mine.csv")
    given = spec(root, corrections=str(root / "lists" / "mine.csv"))
    assert load_data(given, data_dir=moved).data_hash == data.data_hash


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b.png,cat,test,", "line 3: there is no picture .*b.png"),
        ("a.png,dog,train,", "line 3: a.png was named before"),
        ("../x/a.png,cat,test,", "line 3: ../x/a.png is outside the folder"),
        ("c.png,cat,tset,", "line 3: unknown split 'tset'; did you mean 'test'"),
        ("c.png,owl,test,", "class 'owl' has no training picture"),
        ("c.png,cat,train,", "only one class, 'cat'"),
    ],
)
def test_a_csv_file_names_the_wrong_line(line, said, tmp_path):
    for name in "ac":
        (tmp_path / f"{name}.png").touch()
    path = tmp_path / "x.csv"
    path.write_text(f"path,label,split,group\na.png,cat,train,\n{line}\n")
    with pytest.raises(InputError, match=said) as caught:
        list_pictures(f"csv:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("strange", ["splits", "label", "Path"])
def test_a_csv_file_has_known_columns_once_each(strange, tmp_path):
    (tmp_path / "x.csv").write_text(f"path,label,{strange}\n")
    with pytest.raises(InputError, match=f"line 1: .* column '{strange.lower()}'"):
        list_pictures(f"csv:{tmp_path / 'x.csv'}")


LABELS = "path,label\na.png,cat\nb.png,dog\nc.png,cat\n=d.png,dog\n"


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        (LABELS, ""),
        (LABELS.replace("\n", "\r").replace("cat", "cat\xa0", 1), ""),
        (LABELS.replace("\n", "\n,\n"), ""),
        (LABELS.replace("path", "\ufeffPath").replace("label", "LABEL"), ""),
        (f",{LABELS}".replace("\n", "\n7,").removesuffix("7,"), ""),
        (LABELS.replace("\n", ",7\n").replace("label,7", "label,width"), "width"),
        (LABELS.replace("=d", "'=d"), ""),
    ],
)
def test_a_csv_file_of_another_program_gives_the_same_pictures(text, unused, tmp_path):
    for name in ("a", "b", "c", "=d"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    (tmp_path / "x.csv").write_text(text)
    found = list_pictures(f"csv:{tmp_path / 'x.csv'}")
    names = [Path(path).name for path in found.paths]
    labels = {"=d.png": 1, "a.png": 0, "b.png": 1, "c.png": 0}
    assert dict(zip(names, found.labels, strict=True)) == labels
    assert found.class_names == ("cat", "dog")
    told = [note for note in found.notes if "blanks" not in note]
    assert [note.endswith(f"not used: {unused}") for note in told] == [True] * bool(unused)


@pytest.mark.parametrize(("written", "stored"), [("a\u0308", "\xe4"), ("\xe4", "a\u0308")])
def test_a_path_of_a_csv_file_may_have_another_form_of_unicode(written, stored, tmp_path):
    for name in (stored, "b"):
        (tmp_path / f"{name}.png").write_bytes(b"")
    (tmp_path / "x.csv").write_text(f"path,label\n{written}.png,cat\nb.png,dog\n", "utf-8")
    assert list_pictures(f"csv:{tmp_path / 'x.csv'}").names == (f"{stored}.png", "b.png")


@pytest.mark.parametrize(
    "labels", [("0002", "002", "02", "2", "9", "10"), ("-1.0", "2.0", "10.0"), ("10", "9", "x")]
)
def test_numbers_as_labels_are_sorted_by_value_in_tables_and_arrays(tmp_path, labels):
    for label in labels:
        (tmp_path / f"{label}.png").write_bytes(b"")
    lines = [f"{label}.png\t{label}" for label in sorted(labels)]
    (tmp_path / "x.csv").write_text("\n".join(["path\tlabel", *lines]))
    assert list_pictures(f"csv:{tmp_path / 'x.csv'}").class_names == labels
    arrays = {"images": np.zeros((len(labels), 3, 3), "u1"), "labels": np.array(labels[::-1])}
    assert list_arrays(tmp_path, arrays).class_names == labels
