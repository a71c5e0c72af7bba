"""A step of a run taken again: the same bits, the layer where it broke, and no changed file."""

import math

import pytest
import torch

from tests.cli import commands
from tests.runner.train.conftest import files, train
from vitcli.core.objectives.classify import Classify
from vitcli.runner.run.folder import steps
from vitcli.runner.train.trainer import Hook

CHANGES = {
    "dropout, mixing and an average": {},
    "parts of batches": {"train.accumulate": 2, "data.val_split": 16, "train.eval_every": 3},
}


class Written(Hook):
    """Keeps the scalars of each step."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def on_step(self, trainer, step):
        scalars = {name: value.item() for name, value in step.scalars.items()}
        self.steps[step.step] = scalars | {"lr": step.lr}


@pytest.mark.parametrize("name", CHANGES)
def test_a_replayed_step_has_the_bits_of_the_run(tiny, here, name):
    written = Written()
    run = train(tiny, "run", CHANGES[name], hooks=(written,)).folder
    before, kept = files(here), steps(run.checkpoints)
    for step in (3, kept[-1] + 2, max(written.steps)):
        report = commands.document("train", "--resume", "run", "--replay", step)
        assert written.steps[step] == {key: report[key] for key in written.steps[step]}
        assert report["first_step"] == max([0, *(each for each in kept if each < step)]) + 1
        assert report["exact"]
        assert report["first_not_finite"] is None
    assert files(here) == before


@pytest.fixture
def poisoned(monkeypatch):
    """From the third step of the third epoch on, an image has a pixel that is no number."""
    original = Classify.batches

    def batches(self, data, epoch, first_batch=0):
        for number, batch in enumerate(original(self, data, epoch, first_batch), first_batch):
            if (epoch, number) == (2, 2):
                batch["images"][0, 0, 0, 0] = math.nan
            yield batch

    monkeypatch.setattr(Classify, "batches", batches)


@pytest.mark.usefixtures("poisoned")
def test_a_diverged_run_names_the_replay_that_finds_its_step_and_layer(tiny, here):
    talk = commands.said(8, "train", tiny, "-o", "run")
    told = talk.partition("see the layers: vitcli ")[2].strip()
    out, _ = commands.typed(told)
    assert "activations of patch_embed" in out
    report = commands.document(*told.split())
    assert (report["step"], report["loss"], report["grad_norm"]) == (13, None, None)
    assert report["first_step"] == 11
    assert report["next"] == commands.document("runs", "show", "run")["next"]
    first = report["layers"][0]
    assert report["first_not_finite"] == f"{first['values']} of {first['layer']}"
    assert 0 < first["not_finite_share"] < 1
    rows = commands.printed("train", "--resume", "run", "--replay", 12, "--format", "csv")
    assert rows.startswith("layer,values,min,max,rms,not_finite_share")
    assert not any(row.rpartition(",")[2] != "0.0" for row in rows.splitlines()[1:])


def test_a_run_whose_checkpoints_are_gone_starts_at_its_first_step(tiny, here, monkeypatch):
    """It is exact only in the environment that the run began in."""
    written = Written()
    run = train(tiny, "run", {"train.epochs": 2}, hooks=(written,)).folder
    for step in steps(run.checkpoints):
        (run.checkpoints / str(step) / "manifest.json").unlink()
    report = commands.document("train", "--resume", "run", "--replay", 4)
    assert (report["loss"], report["first_step"]) == (written.steps[4]["loss"], 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    words = ("train", "--resume", "run", "--replay", 4)
    assert "threads 1 -> 7" in commands.said(2, *words)
    report = commands.document(*words, "--allow-inexact")
    assert not report["exact"]
    assert "threads 1 -> 7" in report["notes"][0]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--resume", "calm", "--replay", 21), 2, "type a number from 1 to 20"),
        (("--resume", "calm", "--replay", 0), 2, "--replay"),
        (("--replay", 3), 2, "name it with --resume RUN"),
        (("--resume", "auto", "--replay", 3), 2, "name it with --resume RUN"),
        (("--resume", "calm", "--replay", 3, "--dry-run"), 2, "--dry-run"),
        (("--resume", "calm", "--replay", 3, "-s", "optim.lr=1"), 2, "--allow-inexact"),
        (("--resume", "nobody", "--replay", 3), 4, "nobody"),
    ],
)
def test_what_cannot_be_replayed_is_refused(calm, words, code, told):
    before = files(calm.path)
    assert told in commands.said(code, "train", *words)
    assert files(calm.path) == before


def test_a_change_shows_what_the_step_would_have_been(calm):
    words = ("train", "--resume", "calm", "--replay", 18)
    rates = [
        commands.document(*words, *more)["lr"]
        for more in ((), ("-s", "optim.lr=4e-3", "--allow-inexact"))
    ]
    assert rates[1] == pytest.approx(2 * rates[0])
    with calm.lock():
        commands.said(7, *words)
