"""`vitcli train`: where a run goes, what it starts from, and what its next command is."""

import errno
import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.cli.commands import vitcli
from tests.runner.machine.processors import AVX2, ZEN4
from tests.stopping import stop_after
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.machine import products
from vitcli.runner.run.folder import RunDir, list_runs


def read(path: str) -> dict:
    return json.loads(Path(path).read_text())


def error_of(talk: str) -> str:
    """The only error."""
    (error,) = [line for line in talk.splitlines() if line.startswith("error:")]
    return error


def test_a_run_is_trained_measured_and_predicts(tiny, pictures):
    code, out, talk = vitcli("train", tiny, "-o", "run")
    assert (code, "epoch   4" in talk) == (0, True)
    assert not {"\x1b", "\r"} & {*talk}, "nobody looks at a terminal"
    assert out.endswith("next           vitcli eval run\n")
    result = read("run/result.json")
    assert (result["epochs"], result["test_accuracy"] > 0.9) == (4, True)
    assert "test_top5_accuracy" not in result, "with two classes it would be 100 %"
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["test_loss"] for line in lines]
    assert losses[-1] < 0.8 * losses[0]
    found = json.loads(vitcli("eval", "run", "--json", "--predictions", "p.npz")[1])
    assert {name: found[name] for name in ("test_accuracy", "parameters", "epochs")} == {
        name: result[name] for name in ("test_accuracy", "parameters", "epochs")
    }
    assert (found["class_names"], Path("p.npz").is_file()) == (["bright", "dark"], True)
    _, out, _ = vitcli("predict", "run", pictures / "test" / "bright" / "0.png")
    assert out.splitlines()[1].split()[1] == "bright"


def test_a_second_train_leaves_the_run_alone(copy_of_run, workshop):
    copy_of_run(Path("run"), {"train.epochs": 1})
    words, before = ("train", workshop / "tiny.yaml", "-o", "run"), read("run/meta.json")
    code, out, talk = vitcli(*words, "--epochs", 1)
    assert (code, "--rerun" in talk, "test accuracy" in out) == (0, True, True)
    assert read("run/meta.json") == before
    assert vitcli(*words, "--epochs", 2)[0] == 2, "another configuration"
    written = Path("run/meta.json").stat().st_mtime_ns
    assert vitcli(*words, "--epochs", 1, "--rerun")[0] == 0
    assert Path("run/meta.json").stat().st_mtime_ns > written


def test_changes_go_to_a_folder_of_their_own_and_a_name_is_a_folder(tiny, pictures):
    brief = ("--epochs", 1, "--limit-batches", 1)
    _, out, _ = vitcli("train", tiny, "-s", "model.depth=1", "--seed", 3, *brief, "--json")
    assert re.fullmatch(r"runs/tiny/train-\w{8}/seed3", json.loads(out)["run"])
    _, out, _ = vitcli("train", tiny, "--name", "my pets", *brief)
    assert out.endswith("run            runs/my pets\nnext           vitcli eval 'my pets'\n")
    picture = pictures / "test" / "dark" / "0.png"
    assert vitcli("predict", "my pets", picture)[0] == 0
    assert vitcli("train", tiny, "--name", "my pets", *brief, "--resume", "auto")[0] == 0


def test_dry_run_needs_no_data_and_trains_nothing(here):
    options = ("--epochs", 3, "--lr", 0.01, "--batch-size", 32, "--data", "mnist", "--seed", 4)
    code, out, talk = vitcli("train", "cifar10-tiny", *options, "--dry-run", "--json")
    assert (code, [*here.iterdir()]) == (0, [])
    assert "note: the training would stop here" in talk
    plan = json.loads(out)
    assert plan["parameters"] == sum(plan["parameters_by_part"].values())
    config = plan["config"]
    assert (config["train"]["epochs"], config["train"]["batch_size"]) == (3, 32)
    assert (config["optim"]["lr"], config["data"]["name"], config["seed"]) == (0.01, "mnist", 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_absent_gpu_says_what_there_is(here):
    code, _, talk = vitcli("train", "--device", "cuda")
    assert (code, "(available: cpu)" in error_of(talk)) == (5, True)


def test_a_terminal_gets_a_live_bar(tiny, monkeypatch):
    """tests/cli/test_terminal.py recognises a terminal."""
    monkeypatch.setattr("vitcli.cli.live.is_live", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, talk = vitcli("train", tiny, "--epochs", 2)
    assert (code, "\x1b[" in talk, "epoch   2" in talk) == (0, True, True)


def draw_cifar10(folder: Path) -> Path:
    """Draw a CIFAR-10 as class folders: four images of each class to train on, one to test."""
    for split, count in (("train", 4), ("test", 1)):
        for level, name in enumerate(CATALOGUE["cifar10"].info.class_names):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                colour = (25 * level, i, 0)
                Image.new("RGB", (32, 32), colour).save(folder / split / name / f"{i}.png")
    return folder


def test_the_next_command_works_as_it_stands(tiny, here, monkeypatch):
    place = draw_cifar10(here / "my data")
    tiny.write_text(re.sub('"imagefolder:.*?"', "cifar10", tiny.read_text()))
    options = ["--data-dir", place, "--device", "cpu"]
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        code, _, talk = vitcli("train", tiny, "-o", "my run", *options)
    assert code == 143
    command = error_of(talk).partition("Continue: ")[2]
    assert command == f"vitcli train --resume 'my run' --data-dir '{place}' --device cpu"
    code, _, talk = vitcli("train", tiny, "-o", "my run", *options)
    assert (code, command in talk) == (2, True)
    code, out, _ = vitcli(*shlex.split(command)[1:])
    assert code == 0
    following = out.splitlines()[-1].partition("next           ")[2]
    assert following == f"vitcli eval 'my run' --data-dir '{place}' --device cpu"
    assert vitcli(*shlex.split(following)[1:])[0] == 0


def test_a_training_says_that_its_event_file_is_incomplete(tiny, monkeypatch):
    opened = Path.open

    def open_file(path: Path, mode: str = "r", *words, **options):
        if mode == "xb":
            raise OSError(errno.ENOSPC, "disk full")
        return opened(path, mode, *words, **options)

    monkeypatch.setattr(Path, "open", open_file)
    code, out, talk = vitcli("train", tiny, "-o", "run", "--epochs", 1)
    assert (code, talk.count("(disk full)"), out.count("(disk full)")) == (0, 1, 1)


def test_a_run_finds_its_pictures_after_they_have_moved(copy_of_run, workshop, here, pictures):
    """The copy of the run was trained on pictures that lie elsewhere, and are moved for a while."""
    copy_of_run(Path("run"), {"train.epochs": 1})
    accuracy, moved = read("run/result.json")["test_accuracy"], here / "moved"
    more = ("train", "--resume", "run", "--epochs", 2, "--allow-inexact")
    (workshop / "pictures").rename(moved)
    try:
        for words in (["eval", "run"], more):
            code, _, talk = vitcli(*words)
            assert (code, "--data-dir" in error_of(talk)) == (4, True)
        _, out, talk = vitcli("eval", "run", "--json", "--data-dir", moved)
        assert (json.loads(out)["test_accuracy"], "other images" in talk) == (accuracy, False)
        assert vitcli("visualize", "run", "--what", "curves", "--data-dir", moved)[0] == 0
        assert vitcli(*more, "--data-dir", moved)[0] == 0
        assert f"imagefolder:{workshop}" in Path("run/config.yaml").read_text()
        hidden = (moved / "test" / "dark" / "0.png").rename(here / "0.png")
        code, _, talk = vitcli(*more[:3], "--epochs", 3, *more[5:], "--data-dir", moved)
        assert (code, "was trained on other images" in error_of(talk)) == (4, True)
        code, _, talk = vitcli("eval", "run", "--data-dir", moved)
        assert (code, "was trained on other images" in talk) == (0, True)
        hidden.rename(moved / "test" / "dark" / "0.png")
    finally:
        os.rename(moved, workshop / "pictures")


def lengths(run: RunDir) -> tuple[int, int | None]:
    train = run.spec().train
    return train.epochs, train.limit_batches


@pytest.mark.parametrize(
    ("words", "expected", "said"),
    [
        (["--epochs", 1, "--limit-batches", 2], (1, 2), "--epochs and --limit-batches shorten"),
        (["--epochs", 4, "--limit-batches", 1], (3, 1), "--limit-batches shortens"),
        (["--epochs", 1, "-s", "pretrain.train.epochs=2"], (2, None), ""),
    ],
)
def test_a_short_try_is_short_in_all_its_parts(tiny, words, expected, said):
    """A full training does not use the pre-training of a short try."""
    tiny.write_text(f"{tiny.read_text()}pretrain: {{train: {{epochs: 3, batch_size: 16}}}}\n")
    code, _, talk = vitcli("train", tiny, "-o", "run", *words)
    assert code == 0
    assert [lengths(run) for run in list_runs(Path("runs/pretrained"))] == [expected]
    notes = [line for line in talk.splitlines() if line.startswith("note: --")]
    assert (len(notes), said in "".join(notes)) == (bool(said), True)
    if expected == (3, 1):
        assert vitcli("train", tiny, "-o", "run", "--rerun", "--epochs", 1)[0] == 0
        found = {lengths(run) for run in list_runs(Path("runs/pretrained"))}
        assert found == {(3, 1), (3, None)}


@pytest.fixture
def emulating(monkeypatch) -> None:
    """A CPU that takes 60 times as long in bf16."""
    speeds = {"fp32": 60e9, "bf16": 1e9}
    monkeypatch.setattr(products, "this_processor", lambda: AVX2)
    monkeypatch.setattr(products, "product_rate", lambda size, precision: speeds[precision])


@pytest.mark.usefixtures("emulating")
def test_a_training_in_emulated_bf16_warns_once_and_gives_the_same_result(tiny, monkeypatch):
    words = ("train", tiny, "--device", "cpu", "--epochs", 1)
    talks = [vitcli(*words, "--precision", "bf16", "-o", "warned")[2]]
    talks += [vitcli(*words, "-o", "auto")[2]]
    monkeypatch.setattr(products, "this_processor", lambda: ZEN4)
    talks += [vitcli(*words, "--precision", "bf16", "-o", "silent")[2]]
    assert [talk.count("emulates bf16") for talk in talks] == [1, 0, 0]
    one, other = (read(f"{name}/result.json")["test_loss"] for name in ("warned", "silent"))
    assert one == other


@pytest.mark.usefixtures("emulating")
@pytest.mark.parametrize(
    "command",
    [
        "train tiny.yaml --dry-run --precision bf16",
        "bench train tiny.yaml --rounds 1 --seconds 0 --precision bf16",
        "bench attention --lengths 16 --embed-dim 16 --num-heads 2 --rounds 1 --seconds 0"
        " --precision bf16",
        "ablate study.yaml --dry-run",
    ],
)
def test_every_command_in_emulated_bf16_warns_once(tiny, command):
    Path("study.yaml").write_text(
        "base: tiny.yaml\ntrain: {epochs: 2, precision: bf16}\nseeds: [0, 1]\n"
        "variants: {full: {}, no-norm: {model.norm: none}}\n"
    )
    code, _, talk = vitcli(*shlex.split(command), "--device", "cpu")
    assert (code, talk.count("emulates bf16")) == (0, 1)
