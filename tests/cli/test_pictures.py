"""The pictures of `vitcli attn-map` and `vitcli predict`: files, folders, and what is none."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.commands import document, said, save_picture, vitcli
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.folder import RunDir


def test_a_folder_is_mapped_twice_and_its_figures_are_left_out(mapped_run):
    Path("many").mkdir()
    for name in ("many/b.png", "many/a.jpg"):
        save_picture(name, (9, 9))
    Path("many/notes.txt").write_text("no picture")
    os.chdir("many")
    rows = document("attn-map", mapped_run, ".")["pictures"]
    assert [row["image"] for row in rows] == ["a.jpg", "b.png"]
    assert all(Path(row["file"]).is_file() for row in rows)
    Path("a-cls.png").rename("renamed.png")
    assert len(document("attn-map", mapped_run, ".")["pictures"]) == 2
    said(0, "attn-map", mapped_run, "renamed.png")  # a figure that is named itself
    for file in ("a.jpg", "b.png"):
        Path(file).unlink()
    assert "only 4 figures of attn-map" in said(4, "attn-map", mapped_run, ".")


def test_pictures_of_one_name_do_not_overwrite_each_other(mapped_run):
    for folder in ("a", "b.c"):
        Path(folder).mkdir()
        save_picture(f"{folder}/x.png", (10, 10))
    save_picture("a/x.jpg", (10, 10))
    said(0, "attn-map", mapped_run, "a", "b.c", "-o", "b.c")
    found = sorted(path.name for path in Path("b.c").glob("*-cls.png"))
    assert found == ["x-2-cls.png", "x-3-cls.png", "x-cls.png"]


def test_a_map_takes_no_name_of_a_picture(mapped_run):
    Path("many").mkdir()
    for name in ("many/a.png", "many/a-cls.png", "many/b.png"):
        save_picture(name, (9, 9))
    mine = Path("many/a-cls.png").read_bytes()
    for words in (["many"], ["many"], ["many/a.png"]):
        said(0, "attn-map", mapped_run, *words, "-o", "many")
    assert Path("many/a-cls.png").read_bytes() == mine
    made = {path.name for path in Path("many").iterdir()} - {"a.png", "a-cls.png", "b.png"}
    assert made == {"a-2-cls.png", "a-cls-cls.png", "b-cls.png"}
    for name in ("a.png", "a-cls.png", "a-2-cls.png"):
        said(2, "attn-map", mapped_run, f"many/{name}", "-o", f"many/{name}")


def test_a_bad_picture_is_one_line_and_the_others_are_written(mapped_run):
    Path("bad.png").write_text("words")
    code, out, talk = vitcli("attn-map", mapped_run, "bad.png", "-o", "out")
    assert (code, out, Path("out").exists()) == (4, "", False)
    assert talk.splitlines()[1].startswith("error: bad.png: ")
    Path("-").mkdir()  # which is standard input, whatever lies here
    said(4, "attn-map", mapped_run, "-")
    files = (save_picture("a.png", (9, 9)), "bad.png", "missing.png")
    code, out, talk = vitcli("attn-map", mapped_run, *files)
    assert (code, out.split()[-1], Path("a-cls.png").is_file()) == (3, "a-cls.png", True)
    Path("empty").mkdir()
    Path("a-cls.png").unlink()
    assert vitcli("attn-map", mapped_run, "a.png", "empty")[:2] == (4, "")
    assert not Path("a-cls.png").exists(), "a folder without pictures stops at once"


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


IN_ORDER = [f"photos/{n}" for n in ("2.png", "10.png", "Größe.PNG", "old/1.png", "old/my cat.png")]
ANSWERS = [(path, path != IN_ORDER[0]) for path in IN_ORDER]
"""Each picture, and whether it has an answer, in a folder whose first picture is damaged."""


@pytest.mark.parametrize(("words", "rows"), [([], 2), (["--top", 1], 1), (["--top", 99], 2)])
def test_one_picture_shows_several_classes(run, photos, words, rows):
    assert len(document("predict", run, photos / "2.png", *words)["top"]) == rows


def test_many_pictures_are_one_forward_and_the_same_answers(run, photos, monkeypatch):
    predictor = Predictor(RunDir(Path(run)), "cpu")
    alone = [next(predictor.predict_each([path])) for path in IN_ORDER]
    sizes = []
    predictor.model.register_forward_hook(lambda _, images, __: sizes.append(len(images[0])))
    together = [*predictor.predict_each(IN_ORDER)]
    assert sizes == [5]
    for one, other in zip(alone, together, strict=True):
        assert [name for name, _ in one.top] == [name for name, _ in other.top]
        shares = [torch.tensor([share for _, share in each.top]) for each in (one, other)]
        torch.testing.assert_close(*shares)
    assert {one.top[0][0] for one in alone} == {"bright", "dark"}
    monkeypatch.setattr("vitcli.runner.evaluate.predict.images_at_once", lambda _: 2)
    assert [each.path for each in predictor.predict_each(IN_ORDER)] == IN_ORDER
    assert sizes == [5, 2, 2, 1]


def test_an_unreadable_picture_is_marked_and_the_others_are_done(run, photos):
    (photos / "2.png").write_text("words")
    code, out, _ = vitcli("predict", run, photos, "--json")
    found = json.loads(out)
    assert code == 3
    assert [(row["file"], row["error"] is None) for row in found["pictures"]] == ANSWERS
    assert [row["file"] for row in found["top"]] == IN_ORDER[1:]
    row = found["pictures"][1]
    assert {row["class"], row["second_class"]} == {"bright", "dark"}
    assert row["probability"] + row["second_probability"] == pytest.approx(1)


def test_unlikely_pictures_are_rejected(run, photos):
    shares = [row["probability"] for row in document("predict", run, photos)["pictures"]]
    least = (min(shares) + max(shares)) / 2
    found = document("predict", run, photos, "--reject", least)
    accepted = [share >= least for share in shares]
    assert [row["accepted"] for row in found["pictures"]] == accepted
    assert found["num_accepted"] == sum(accepted) > 0


@pytest.mark.parametrize(("threshold", "size"), [(1e-9, 2), (0.501, 1), (1.0, 0)])
def test_a_prediction_set_holds_the_classes_that_reach_the_threshold(run, photos, threshold, size):
    for temperature in (1.0, 999.0):  # which changes the probability, but no set
        numbers = {"set_threshold_0.9": threshold, "temperature": temperature}
        Path(run, "result.json").write_bytes(to_hashed_json(numbers))
        for row in document("predict", run, photos, "--coverage", 0.9)["pictures"]:
            assert row["set"] == [row["class"], row["second_class"]][:size]
            assert row["accepted"] == (size == 1)
    Path(run, "result.json").write_bytes(to_hashed_json({"set_threshold_0.9": 0.0}))
    for share in (0.9, 0.7):
        said(2, "predict", run, photos, "--coverage", share)
