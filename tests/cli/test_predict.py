"""`vitcli predict` on folders: every picture in them, one table, many pictures at once."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.map_pictures import save
from vitcli.cli.main import app
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.run.folder import RunDir


@pytest.fixture
def run(copy_of_run, here) -> str:
    return str(copy_of_run(here / "run", {"train.epochs": 1}))


@pytest.fixture
def photos(pictures) -> Path:
    """A folder as people have it: numbers without zeros, folders inside, other files."""
    bright, dark = (pictures / "test" / name for name in ("bright", "dark"))
    folder = Path("photos")
    for path in ("Größe.PNG", "10.png", "2.png", "old/my cat.png", "old/1.png"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy((dark if path == "old/1.png" else bright) / "3.png", folder / path)
    for path in (".DS_Store", ".hidden.png", "notes.txt", ".cache/3.png"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("no picture")
    return folder


def predict(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, ["predict", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


IN_ORDER = [
    "photos/2.png",
    "photos/10.png",
    "photos/Größe.PNG",
    "photos/old/1.png",
    "photos/old/my cat.png",
]


def test_a_folder_is_a_table_of_all_its_pictures_in_natural_order(run, photos):
    code, out, talk = predict(photos, "--run", run)
    assert code == 0, talk
    header, *rows = [line.split("  ") for line in out.splitlines()]
    assert [row[0] for row in rows] == IN_ORDER
    assert " ".join(header).split() == ["file", "class", "probability"]
    assert {row[-1].split()[-1] for row in rows} == {"%"}
    assert "photos: ignored 3 files (hidden, " in talk
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("words", "rows"), [([], 2), (["--top", 1], 1), (["--top", 99], 2)])
def test_one_picture_shows_several_classes(run, photos, words, rows):
    code, out, _ = predict(photos / "2.png", "--run", run, *words)
    assert code == 0
    lines = out.splitlines()[1:]
    assert [line.startswith("photos/2.png") for line in lines] == [True] + [False] * (rows - 1)
    assert {"bright", "dark"} >= {line.split()[-3] for line in lines}


def test_many_pictures_are_one_forward_and_the_same_answers(run, photos, monkeypatch):
    predictor = Predictor(RunDir(Path(run)), "cpu")
    alone = [predictor.predict(path) for path in IN_ORDER]
    sizes = []
    predictor.model.register_forward_hook(lambda _, images, __: sizes.append(len(images[0])))
    together = [*predictor.predict_each(IN_ORDER)]
    assert sizes == [5]
    for one, other in zip(alone, together, strict=True):
        assert [name for name, _ in one.top] == [name for name, _ in other.top]
        shares = [torch.tensor([share for _, share in each.top]) for each in (one, other)]
        torch.testing.assert_close(*shares)
    assert {one.top[0][0] for one in alone} == {"bright", "dark"}
    assert sizes == [5]
    monkeypatch.setattr("vitcli.runner.evaluate.predict.images_at_once", lambda _: 2)
    assert [each.path for each in predictor.predict_each(IN_ORDER)] == IN_ORDER
    assert sizes == [5, 2, 2, 1]


def test_an_unreadable_picture_is_marked_and_the_others_are_done(run, photos):
    (photos / "2.png").write_text("words")
    code, out, talk = predict(photos, "--run", run)
    assert code == 3
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == IN_ORDER
    assert out.splitlines()[1].split("  ", 1)[1].split() == ["cannot", "be", "read", "-"]
    assert "error: photos/2.png: text, not a picture" in talk
    assert talk.endswith("error: 1 of 5 images could not be read\n")
    code, out, _ = predict(photos, "--run", run, "--json")
    assert code == 3
    found = json.loads(out)
    assert [each["image"] for each in found] == IN_ORDER
    assert [each["error"] is None for each in found] == [False] + [True] * 4
    assert [len(each["top"]) for each in found] == [0, 1, 1, 1, 1]
    code, out, _ = predict(photos, "--run", run, "--format", "csv", "--top", 2)
    assert code == 3
    rows = [*csv.DictReader(out.splitlines())]
    assert [row["file"] for row in rows] == IN_ORDER[:1] + [f for f in IN_ORDER[1:] for _ in "12"]
    assert "text, not a picture" in rows[0]["error"]
    assert float(rows[1]["probability"]) + float(rows[2]["probability"]) == pytest.approx(1)


def test_no_readable_picture_is_exit_4(run, here):
    for name in ("a.png", "b.png"):
        Path(name).write_text("words")
    assert predict("a.png", "--run", run)[:2] == (4, "")
    assert predict("a.png", "b.png", "--run", run)[0] == 4
    assert json.loads(predict("a.png", "b.png", "--run", run, "--json")[1])[1]["top"] == []


def test_a_folder_without_pictures(run, here):
    Path("empty/.hidden").mkdir(parents=True)
    save("empty/.hidden/a.png", (8, 8))
    code, out, talk = predict("empty", "--run", run)
    assert (code, out) == (4, "")
    assert "error: empty: no picture in this folder" in talk


def test_a_folder_that_cannot_be_listed_is_named(run, photos, monkeypatch):
    def scandir(folder: str, scan=os.scandir):
        if Path(folder).name == "old":
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    code, out, talk = predict(photos, "--run", run)
    assert (code, out) == (4, "")
    assert "error: photos/old: cannot be listed: Permission denied\n" in talk


def test_a_terminal_shows_how_many_are_done(run, photos, monkeypatch):
    monkeypatch.setattr("vitcli.cli.live.is_live", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, talk = predict(photos, "--run", run)
    assert code == 0
    assert "5 of 5" in talk
    assert "5 of 5" not in out
