"""`vitcli eval --zero-shot`: its output in every form, and every mistake on it."""

import csv
import json
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.core.objectives.clip.clip import ContrastiveTask


def vitcli(command: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout if code == 0 else done.stderr.strip().splitlines()[-1]


@pytest.fixture
def run(tiny) -> str:
    """A run with captions about dark and bright pictures."""
    changes = "-s data.augment.mixup=0 -s train.precision=fp32 -s optim.lr=0.01 --epochs 6"
    vitcli(f"train {tiny} -s task.name=clip {changes} -o run")
    return "run"


def test_all_forms_have_the_same_numbers(run):
    found = json.loads(vitcli(f"eval {run} --zero-shot --json"))
    stored = json.loads(Path(run, "result.json").read_text())
    assert found["zero_shot_accuracy"] == pytest.approx(stored["test_zero_shot_accuracy"])
    assert (found["num_images"], found["num_labelled"]) == (24, 24)
    assert [each["name"] for each in found["classes"]] == ["bright", "dark"]
    assert sum(each["num_assigned"] for each in found["classes"]) == 24
    shown = f"{100 * found['zero_shot_accuracy']:.2f} %"
    assert f"zero-shot accuracy  {shown} of 24 images" in vitcli(f"eval {run} --zero-shot")
    assert f"| zero-shot accuracy | {shown}" in vitcli(f"eval {run} --zero-shot --format md")
    rows = [*csv.reader(vitcli(f"eval {run} --zero-shot --format csv").splitlines())]
    assert rows[0] == ["class", "images", "accuracy", "assigned"]
    assert [row[0] for row in rows[1:]] == ["bright", "dark"]


def test_classes_are_given_by_name_alone(run):
    names = '--classes " Dark ,photo,bright"'
    found = json.loads(vitcli(f"eval {run} --zero-shot {names} --json"))
    dark, other, bright = found["classes"]
    assert (dark["name"], dark["num_images"], bright["num_images"]) == ("Dark", 12, 12)
    assert (other["num_images"], other["accuracy"]) == (None, None)
    found = json.loads(vitcli(f'eval {run} --zero-shot --classes "photo,dark" --json'))
    assert (found["num_images"], found["num_labelled"]) == (24, 12)
    assert "12 of 24 test images, not in" in vitcli(
        f'eval {run} --zero-shot --classes "photo,dark"'
    )
    none = vitcli(f'eval {run} --zero-shot --classes "photo,image"')
    assert "none: the data set has no class of these; 24 test images" in none


def test_a_word_that_no_caption_has_is_named(run):
    command = f"eval {run} --zero-shot --classes"
    done = CliRunner().invoke(app, [*shlex.split(command), "dark,red hot bright"])
    assert done.exit_code == 0
    assert "unknown words, because no caption of the training has them: red, hot\n" in done.stderr
    assert (
        "unknown words"
        not in CliRunner().invoke(app, [*shlex.split(command), "dark,bright"]).stderr
    )


def test_mistakes_are_refused_in_one_line(run, tiny):
    vitcli(f"train {tiny} --epochs 0 -o plain")
    for command, message in (
        ("eval plain --zero-shot", "trained with task 'classify', which has no text; take a run"),
        (
            "eval run --zero-shot --classes cat,dark",
            "no word of class 'cat' occurs in the captions",
        ),
        ("eval run --zero-shot --classes dark", 'at least two names, such as --classes "cat,dog"'),
        ("eval run --zero-shot --classes dark,,bright", "at least two names"),
        ("eval run --zero-shot --classes dark,dark", "names 'dark' twice"),
        ("eval run --classes dark,bright", "add --zero-shot"),
        ("eval run --zero-shot --tta", "--zero-shot does not take --tta"),
        ("eval run --zero-shot --probe knn", "--zero-shot does not take --probe"),
        ("eval run --zero-shot --labels 5", "--labels is the number of labels for a probe"),
        ("eval run --zero-shot --classes photo,image --min-accuracy 0.5", "no image has one of"),
    ):
        assert message in vitcli(command, 2), command


def test_a_least_accuracy_is_checked(run, monkeypatch):
    monkeypatch.setattr(
        ContrastiveTask, "zero_shot", lambda *_: (torch.tensor([[1.0, 0.0]] * 24), [])
    )
    vitcli(f"eval {run} --zero-shot --min-accuracy 0.5")
    message = "run: accuracy 50.00 % is below --min-accuracy 0.6"
    assert message in vitcli(f"eval {run} --zero-shot --min-accuracy 0.6", 6)
