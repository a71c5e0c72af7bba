"""The main path through the command line, and every mistake on it: one message, the right code."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.patience import HANG
from tests.stopping import stop_after
from vitcli.cli.main import app
from vitcli.runner.data.catalogue import CATALOGUE


def vitcli(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def one_line(talk: str) -> str:
    """The error, which is one line, follows a few lines of talk, and is no traceback."""
    errors = [line for line in talk.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "Traceback" not in talk
    return errors[0]


def test_train_eval_predict(tiny, pictures):
    code, out, talk = vitcli("train", tiny, "-o", "run")
    assert code == 0
    assert "test accuracy" in out
    assert "next           vitcli eval run" in out
    assert "epoch   4" in talk
    result = json.loads(Path("run/result.json").read_text())
    assert result["epochs"] == 4
    assert result["test_accuracy"] > 0.9
    assert "test_top5_accuracy" not in result, "with two classes it would be 100 %"
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["test_loss"] for line in lines]
    assert losses[-1] < 0.8 * losses[0]

    code, out, _ = vitcli("eval", "run", "--json", "--predictions", "p.npz")
    assert code == 0
    found = json.loads(out)
    assert found["test_accuracy"] == result["test_accuracy"]
    assert found["parameters"] == result["parameters"]
    assert found["epochs"] == 4
    assert {"train_seconds", "images_per_second"} <= found.keys()
    assert found["class_names"] == ["bright", "dark"]
    assert Path("p.npz").is_file()

    bright = pictures / "test" / "bright" / "0.png"
    code, out, talk = vitcli("predict", bright, "--run", "run")
    assert code == 0
    assert out.splitlines()[1].split()[1] == "bright"
    assert "run run" in talk


@pytest.fixture
def run(copy_of_run, tiny) -> str:
    copy_of_run(Path("run"), {"train.epochs": 1})
    return "run"


@pytest.mark.parametrize("form", ["text", "md", "csv", "json"])
def test_eval_formats_hold_the_classes(run, form):
    code, out, _ = vitcli("eval", run, "--format", form)
    assert code == 0
    assert "bright" in out
    assert "dark" in out
    assert not re.search("top.?5", out), "with two classes it would be 100 %"
    assert form == "json" or "balanced" not in out, "both classes have as many images"


def test_min_accuracy_is_exit_6(run, monkeypatch):
    assert vitcli("eval", run, "--min-accuracy", 0.0)[0] == 0
    flip_labels(monkeypatch)
    accuracy = json.loads(vitcli("eval", run, "--json")[1])["test_accuracy"]
    assert accuracy < 1
    code, out, talk = vitcli("eval", run, "--min-accuracy", 1.0)
    assert code == 6
    assert "accuracy" in out
    assert "below --min-accuracy" in one_line(talk)


def flip_labels(monkeypatch) -> None:
    """Half of the test images change sides, so that no model is always right."""
    from vitcli.runner.evaluate import trained_run as evaluate

    original = evaluate.load_data

    def load(*words, **options):
        data = original(*words, **options)
        data.test.labels[::2] = 1 - data.test.labels[::2]
        return data

    monkeypatch.setattr(evaluate, "load_data", load)


def test_a_second_train_leaves_the_run_alone(workshop, run):
    tiny = workshop / "tiny.yaml"
    code, out, talk = vitcli("train", tiny, "-o", "run", "--epochs", 1)
    assert code == 0
    assert "--rerun" in talk
    assert "test accuracy" in out
    assert vitcli("train", tiny, "-o", "run", "--epochs", 1, "--rerun")[0] == 0


def test_changes_go_to_a_folder_of_their_own(tiny):
    code, out, _ = vitcli(
        "train", tiny, "-s", "model.depth=1", "--seed", 3, "--epochs", 1, "--json"
    )
    assert code == 0
    folder = Path(json.loads(out)["run"])
    assert folder.parts[:2] == ("runs", "tiny")
    assert folder.parts[2].startswith("train-")
    assert folder.parts[3] == "seed3"


def test_starting_from_a_run_replaces_the_head_where_classes_differ(tiny, run, pictures):
    other = pictures / "train" / "other"
    other.mkdir()
    for i, path in enumerate((pictures / "train" / "dark").iterdir()):
        if i < 20:
            path.rename(other / path.name)
    code, _, talk = vitcli("train", tiny, "-o", "new", "--epochs", 1, "--init", run)
    assert code == 0
    assert "with a new head (3 classes)" in talk
    code, _, talk = vitcli("train", tiny, "-o", "no", "--init", run, "-s", "model.depth=3")
    assert code == 2
    first, then = talk.splitlines()[-2:]
    assert "do not fit" in first
    assert then.endswith(f"{run}/config.yaml")


def test_dry_run_needs_no_data_and_trains_nothing(here):
    code, out, _ = vitcli("train", "cifar10-tiny", "--dry-run", "--json")
    assert code == 0
    plan = json.loads(out)
    assert plan["parameters"] == 140_618 == sum(plan["parameters_by_part"].values())
    assert list(here.iterdir()) == []


def test_options_set_the_fields_that_they_name(here):
    options = ("--epochs", 3, "--lr", 0.01, "--batch-size", 32, "--data", "mnist", "--seed", 4)
    code, out, _ = vitcli("train", "quickstart", *options, "--dry-run", "--json")
    assert code == 0
    config = json.loads(out)["config"]
    assert (config["train"]["epochs"], config["train"]["batch_size"]) == (3, 32)
    assert (config["optim"]["lr"], config["data"]["name"], config["seed"]) == (0.01, "mnist", 4)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "quikstart"], 2, "did you mean 'quickstart'?"),
        (["train", "-s", "model.dept=4"], 2, "did you mean 'depth'?"),
        (["train", "--precision", "half"], 2, "error: --precision: should be 'auto', 'fp32', "),
        (["bench", "train", "--precision", "half"], 2, "error: --precision: should be 'auto'"),
        (
            ["train", "--data", "X"],
            2,
            "error: --data: unknown data set 'X'; there are scenes, shapes, gratings, cifar10",
        ),
        (["train", "--seed", "9999999999"], 2, "error: --seed: should be less than 2147483648"),
        (["train", "--epochs", "9999999"], 2, "error: --epochs: should be less than or equal"),
        (["train", "-s", "model.num_heads=5"], 2, "num_heads 5 does not divide embed_dim 64"),
        (["train", "-s", "model.patch_size=5"], 2, "patch_size 5 does not divide 32x32"),
        (["train", "-s", "model.num_classes=7"], 2, "set to 7, but data set scenes has 10"),
        (["train", "-s", "depth"], 2, "FIELD=VALUE"),
        (["train", "nowhere.yaml"], 2, "no such experiment file"),
        (["train", "./"], 2, "to train on its pictures, type --data 'imagefolder:./'"),
        (["train", "cifar10-tiny"], 4, "cifar10"),
        (["train", "cifar10-tiny", "--data-dir", "."], 4, "cifar10"),
        (["train", "--data", "imagefolder:nowhere"], 4, "nowhere"),
        (["train", "--data", "."], 2, "did you mean 'imagefolder:.'?"),
        (["train", "-s", "data.name=."], 2, "--set: data.name: unknown data set '.'; did you mean"),
        (["train", "--data", ""], 2, "fashion-mnist, mnist, imagefolder:PATH"),
        (["train", "--data", "ximagefolder:."], 2, "unknown data set 'ximagefolder:.'"),
        (["train", "--data-dir", "a b"], 2, "did you mean --data 'imagefolder:a b'?"),
        (["train", "--data-dir", "a b", "--dry-run"], 2, "did you mean --data 'imagefolder:a b'?"),
        (["train", "--data", "imagefolder:.", "--data-dir", "b"], 2, "names its folder itself"),
        (["ablate", "--data-dir", "a b"], 2, "scenes is generated; leave out --data-dir"),
        (["data", "info", "shapes", "--data-dir", "b"], 2, "leave out --data-dir"),
        (["data", "get", "imagefolder:a b"], 2, "vitcli train --data 'imagefolder:a b'"),
        (["train", "--skip-bad"], 2, "skip_bad is for your own pictures"),
        (["train", "--device", "gpu"], 2, "write cpu, cuda"),
        (["train", "--precision", "fp16", "--device", "cpu"], 2, "fp16 needs a CUDA device"),
        (
            ["train", "--precision", "tf32", "--device", "cpu"],
            2,
            "type --precision bf16 or --precision",
        ),
        (["train", "-s", "train.batch_size=20000"], 2, "do not fill one batch"),
        (["train", "--resume", "nowhere"], 4, "no run is called 'nowhere'"),
        (["train", "quickstart", "--resume", "nowhere"], 2, "leave out the experiment"),
        (["train", ""], 2, "EXPERIMENT is empty"),
        (["train", "--resume", ""], 2, "--resume is empty"),
        (["train", "--init", ""], 2, "shell variable"),
        (["train", "-s", "model.depth=4\nseed: 9"], 2, "one FIELD=VALUE"),
        (["eval", ""], 2, "name of a run is empty"),
        (["predict", "photo.jpg", "--run", ""], 2, "name of a run is empty"),
        (["attn-map", "photo.jpg", "--run", ""], 2, "name of a run is empty"),
        (["eval", "x" * 300], 4, "File name too long"),
        (["train", "-o", "/dev/null/x"], 2, "/dev/null/x"),
        (["train", "-o", "a/caf\udce9"], 2, "not UTF-8"),
        (["train", "--resume", "nobody", "--epochs", 2], 4, "no run is called 'nobody'"),
        (
            ["train", "--data", "imagefolder:caf\udce9"],
            2,
            "--data: 'imagefolder:caf\\udce9' is not",
        ),
        (["eval", "nowhere"], 4, "no run is called 'nowhere'"),
        (["predict", "x.png"], 4, "x.png: cannot be opened"),
        (["predict", "https://example.org/x.png"], 4, "Download the picture"),
        (["predict", "~/x.png"], 4, "outside quotes"),
        (["predict", "x/*.png"], 4, "outside quotes"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(here, words, code, message):
    got, out, talk = vitcli(*words)
    assert got == code
    assert message in one_line(talk)
    assert out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_absent_gpu_says_what_there_is(here):
    code, _, talk = vitcli("train", "--device", "cuda")
    assert code == 5
    assert "not on this machine (available: cpu)" in one_line(talk)


def test_a_run_without_checkpoint_says_how_to_train_it(tiny, run):
    for path in Path("run/checkpoints").rglob("manifest.json"):
        path.unlink()
    code, _, talk = vitcli("eval", run)
    assert code == 4
    assert "no checkpoint yet" in one_line(talk)


def test_text_given_to_predict_is_refused_and_the_rest_is_done(run, pictures, here):
    (here / "note.png").write_text("not a picture")
    good = pictures / "test" / "dark" / "0.png"
    code, out, talk = vitcli("predict", here / "note.png", good, "--run", run)
    assert code == 3
    assert "not a picture" in talk
    assert str(good) in out
    assert vitcli("predict", here / "note.png", "--run", run)[0] == 4


def test_a_hostile_name_does_not_steer_the_terminal(run, here):
    code, out, talk = vitcli("predict", "\x1b[31m[/]red.png", "--run", run)
    assert code == 4
    assert "\x1b" not in out + talk


def test_piped_output_has_no_escape_codes_and_complete_lines(tiny, environment):
    command = [sys.executable, "-m", "vitcli", "train", str(tiny), "--epochs", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not {"\x1b", "\r"} & set(done.stdout + done.stderr)
    assert done.stderr.count("epoch") < 10
    assert done.stdout.endswith("\n")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_live_bar(tiny, environment):
    master, slave = os.openpty()
    command = [sys.executable, "-m", "vitcli", "train", str(tiny), "--epochs", "2"]
    env = environment | {"TERM": "xterm-256color"}
    done = subprocess.Popen(command, env=env, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert done.wait() == 0
    assert b"\x1b[" in seen
    assert b"epoch   2" in seen


def test_a_limited_evaluation_sees_every_class(run):
    code, out, _ = vitcli("eval", run, "--json")
    assert code == 0
    assert json.loads(out)["num_images"] == 24
    from vitcli.core.data.source import Images
    from vitcli.core.metrics.classification import logits_and_labels
    from vitcli.runner.run.folder import RunDir

    spec = RunDir(Path(run)).spec()
    spec = spec.replace(train=spec.train.replace(limit_batches=1))
    labels = torch.arange(10).repeat_interleave(200)
    images = Images(torch.zeros(2000, 3, 8, 8, dtype=torch.uint8), labels)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    _, seen = logits_and_labels(model, images, spec)
    assert seen.bincount().tolist() == [50] * 10


def test_results_into_a_closed_pipe_are_no_failure(run, environment):
    command = f"{sys.executable} -m vitcli experiments ls --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "0"
    assert "Traceback" not in done.stderr


def test_training_goes_on_when_nobody_listens(tiny, environment):
    command = [sys.executable, "-m", "vitcli", "train", str(tiny), "-o", "alone"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(HANG) == 0
    assert json.loads(Path("alone/status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("status.json", "{}"),
        ("status.json", '{"state": "finished"}'),
        ("result.json", '{"test_accuracy": "abc"}'),
        ("metrics.jsonl", "[1]\n"),
        ("metrics.jsonl", "junk\n"),
        ("meta.json", "[]"),
        ("config.yaml", ": ["),
    ],
)
def test_one_damaged_run_does_not_hide_the_others(tiny, name, content):
    for seed in (0, 1):
        assert vitcli("train", tiny, "--epochs", 1, "--seed", seed)[0] == 0
    (damaged,) = Path("runs/tiny").glob("*/seed1")
    (damaged / name).write_text(content)
    code, out, _ = vitcli("runs", "ls")
    assert code == 0
    assert len(out.splitlines()) == 3  # a header and two runs
    assert vitcli("runs", "show", damaged)[0] in (0, 2, 4)
    assert vitcli("train", "--resume", damaged)[0] in (0, 2, 4)


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
    command = one_line(talk).partition("Continue: ")[2]
    assert command == f"vitcli train --resume 'my run' --data-dir '{place}' --device cpu"
    code, _, talk = vitcli("train", tiny, "-o", "my run", *options)
    assert (code, command in talk) == (2, True)
    code, out, _ = vitcli(*shlex.split(command)[1:])
    assert code == 0
    following = out.splitlines()[-1].partition("next           ")[2]
    assert following == f"vitcli eval 'my run' --data-dir '{place}' --device cpu"
    assert vitcli(*shlex.split(following)[1:])[0] == 0


def test_a_training_says_that_its_event_file_is_incomplete(tiny, here, monkeypatch):
    opened = Path.open

    def open_file(path: Path, mode: str = "r", *words, **options):
        if mode == "xb":
            raise OSError(errno.ENOSPC, "disk full")
        return opened(path, mode, *words, **options)

    monkeypatch.setattr(Path, "open", open_file)
    code, out, talk = vitcli("train", tiny, "-o", "run")
    assert code == 0
    assert talk.count("TensorBoard's event file is incomplete (disk full)") == 1
    assert "tensorboard    the event file is incomplete (disk full); see metrics.jsonl" in out
