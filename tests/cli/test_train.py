"""`vitcli train`: where a run goes, what it starts from, and what its next command is."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.commands import document, printed, said, vitcli
from tests.stopping import stop_after
from vitcli.cli.train import choose_experiment
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.run.folder import RunDir, list_runs


def error_of(talk: str) -> str:
    (error,) = [line for line in talk.splitlines() if line.startswith("error:")]
    return error


def test_changes_go_to_a_folder_of_their_own_and_a_name_is_a_folder(tiny):
    brief = ("--epochs", 1, "--limit-batches", 1)
    made = document("train", tiny, "-s", "model.depth=1", "--seed", 3, *brief)
    assert re.fullmatch(r"runs/tiny/train-\w{8}/seed3", made["run"])
    _, out, talk = vitcli("train", tiny, "--name", "my pets", *brief)
    assert ("runs/my pets" in out, "vitcli eval 'my pets'" in out + talk) == (True, True)
    printed("train", tiny, "--name", "my pets", *brief, "--resume", "auto")


def test_the_run_of_init_says_how_pictures_are_read_unless_that_is_typed(tiny, copy_of_run):
    changes = {"train.epochs": 1, "data.resize": 12, "data.fit": "pad", "data.levels": [0, 999]}
    copy_of_run(Path("runs/old"), changes)
    Path("tuned.yaml").write_text(
        "base: tiny.yaml\ndata: {resize: 8, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}\n"
        "train: {init: another}\n"
    )
    words = ["train", "tuned.yaml", "--init", "old", "--dry-run"]
    old, new = RunDir(Path("runs/old")).spec(), document(*words)["config"]["data"]
    assert (new["resize"], new["fit"], new["levels"]) == (12, "pad", [0, 999])
    assert tuple(new["mean"]) == old.data.mean != (0.5, 0.5, 0.5)
    typed = document(*words, "-s", "data.resize=16", "--fit", "stretch")["config"]["data"]
    assert (typed["resize"], typed["fit"]) == (16, "stretch")


def test_the_next_command_works_as_it_stands(tiny, here, monkeypatch):
    """The data are class folders: four images of each class to train on, one to test."""
    place = here / "my data"
    for level, name in enumerate(CATALOGUE["cifar10"].info.class_names):
        for file in (*(f"train/{name}/{i}.png" for i in range(4)), f"test/{name}/0.png"):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (25 * level, int(file[-5]), 0)).save(place / file)
    tiny.write_text(re.sub('"imagefolder:.*?"', "cifar10", tiny.read_text()))
    options = ["--data-dir", place, "--device", "cpu"]
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        talk = said(143, "train", tiny, "-o", "my run", *options)
    command = error_of(talk).partition("Continue: ")[2]
    ends = f" 'my run' --data-dir '{place}' --device cpu"
    assert command == f"vitcli train --resume{ends}"
    assert command in said(2, "train", tiny, "-o", "my run", *options)
    _, out, talk = vitcli(*shlex.split(command)[1:])
    following = f"vitcli eval{ends}"
    assert following in out + talk
    printed(*shlex.split(following)[1:])


def test_a_run_finds_its_pictures_after_they_have_moved(copy_of_run, workshop, here, pictures):
    """The copy of the run was trained on pictures that lie elsewhere, and are moved for a while."""
    copy_of_run(Path("run"), {"train.epochs": 1})
    accuracy = json.loads(Path("run/result.json").read_text())["test_accuracy"]
    moved = here / "moved"
    more = ("train", "--resume", "run", "--epochs", 2, "--allow-inexact")
    (workshop / "pictures").rename(moved)
    try:
        for words in (["eval", "run"], more):
            assert "--data-dir" in error_of(said(4, *words))
        _, out, _ = vitcli("eval", "run", "--json", "--data-dir", moved)
        assert (json.loads(out)["test_accuracy"], "other images" in out) == (accuracy, False)
        said(0, "visualize", "run", "--what", "curves", "--data-dir", moved)
        said(0, *more, "--data-dir", moved)
        assert f"imagefolder:{workshop}" in Path("run/config.yaml").read_text()
    finally:
        os.rename(moved, workshop / "pictures")


def test_a_finished_run_says_that_its_pictures_are_others_now(tiny, pictures):
    words = ("train", tiny, "--epochs", 1, "-o", "run")
    said(0, *words)
    assert "trained on" not in said(0, *words)
    next((pictures / "train" / "dark").iterdir()).unlink()
    talk = said(0, *words)
    assert "note: run was trained on other images" in talk
    assert "already finished" in talk
    shutil.rmtree(pictures)
    assert "already finished" in said(0, *words)


def pretrained_lengths() -> set[tuple[int, int | None]]:
    trainings = [run.spec().train for run in list_runs(Path("runs/pretrained"))]
    return {(train.epochs, train.limit_batches) for train in trainings}


@pytest.mark.parametrize(
    ("words", "expected", "num_notes"),
    [
        (["--epochs", 1, "--limit-batches", 2], (1, 2), 1),
        (["--epochs", 4, "--limit-batches", 1], (3, 1), 1),
        (["--epochs", 1, "-s", "pretrain.train.epochs=2"], (2, None), 0),
    ],
)
def test_a_short_try_is_short_in_all_its_parts(tiny, words, expected, num_notes):
    tiny.write_text(f"{tiny.read_text()}pretrain: {{train: {{epochs: 3, batch_size: 16}}}}\n")
    talk = said(0, "train", tiny, "-o", "run", *words)
    assert (pretrained_lengths(), talk.count("note: --")) == ({expected}, num_notes)
    assert "already finished" in said(0, "train", tiny, "-o", "run", *words)
    assert "already finished" not in talk
    if expected == (3, 1):
        said(0, "train", tiny, "-o", "run", "--rerun", "--epochs", 1)
        assert pretrained_lengths() == {(3, 1), (3, None)}
        changes = {"train.limit_batches": 1, "pretrain.train.limit_batches": 1}
        again = choose_experiment(
            "run/config.yaml", changes, {"train.limit_batches": "-l"}, None, None, False, False
        )
        assert again[0].name == tiny.stem, "not config"
