"""A run of imported weights: the order of its classes, and what to do with it next."""

import errno
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.test_import_cmd import FIELDS, save, theirs, vitcli
from vitcli.cli.main import app
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.weights.convert import tuning_command
from vitcli.runner.weights.names import naming_of


def test_the_classes_of_timm_are_brought_into_our_order(tiny, here, pictures):
    """timm sorts folders naturally and without case: class 2 comes before class 10."""
    for split in ("train", "test"):
        for old, new in {"bright": "10", "dark": "2"}.items():
            (pictures / split / old).rename(pictures / split / new)
    model = theirs()
    file, images = save(model), torch.randn(3, 3, 8, 8)
    wanted = {None: [0, 1], "natural": [1, 0], "2,10": [1, 0], "10,2": [0, 1]}
    for i, (order, rows) in enumerate(wanted.items()):
        words = ["--class-order", order] if order else []
        code, _, talk = vitcli(file, "-e", tiny, "-o", f"mine{i}", *FIELDS, *words)
        assert (code, "--class-order natural" in talk) == (0, order is None), talk
        ours = load_model(f"mine{i}")(images)
        torch.testing.assert_close(ours, model(images)[:, rows], atol=1e-5, rtol=1e-5)
    code, _, talk = vitcli(file, "-e", tiny, "-o", "no", *FIELDS, "--class-order", "2,2")
    assert (code, talk.endswith("each of these once: 10,2\n")) == (2, True), talk


def test_imported_weights_that_are_gone_are_imported_again(tiny, here):
    assert vitcli(save(theirs()), "-e", tiny, "-o", "mine", *FIELDS)[0] == 0
    shutil.rmtree("mine/checkpoints")
    done = CliRunner().invoke(app, ["eval", "mine"])
    assert (done.exit_code, "import them again" in done.stderr) == (4, True), done.stderr


def test_a_disk_that_is_full_at_any_moment_leaves_nothing_of_an_import(tiny, here, monkeypatch):
    file, real, done, room = save(theirs()), os.replace, [], [0]

    def replace(source, target):
        if len(done) == room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for limit in range(20):
        done.clear()
        room[0] = limit
        code, _, talk = vitcli(file, "-e", tiny, "-o", "mine", *FIELDS)
        if code == 0:
            break
        assert (code, "No space left" in talk, talk.count("error:")) == (5, True, 1), talk
        assert not Path("mine").exists()
    assert Path(done[-1]).name == "config.yaml", "before, the folder is not a run"
    assert limit > 4
    assert CliRunner().invoke(app, ["runs", "verify", "mine"]).exit_code == 0


def test_an_import_that_was_killed_is_not_a_run_and_does_not_block_the_next(tiny, here):
    Path("mine/checkpoints/0").mkdir(parents=True)
    commit_json(Path("mine/meta.json"), {"imported": "vit.safetensors"})
    done = CliRunner().invoke(app, ["eval", "mine"])
    assert (done.exit_code, "not a run folder" in done.stderr) == (4, True), done.stderr
    assert vitcli(save(theirs()), "-e", tiny, "-o", "mine", *FIELDS)[0] == 0
    assert CliRunner().invoke(app, ["runs", "verify", "mine"]).exit_code == 0


def test_the_command_that_trains_imported_weights_can_be_typed():
    words = shlex.split(tuning_command(RunDir(Path("my weights/mine")), Path("my data")))
    assert {"my weights/mine/config.yaml", "my weights/mine", "my data"} <= {*words}


@pytest.mark.parametrize("prefix", ["net.", "backbone.", "model.backbone.", "module.net."])
def test_prefixes_of_wrappers_are_left_out(prefix):
    naming = naming_of([prefix + name for name in theirs().state_dict()])
    assert (naming.prefix, naming.is_timm) == (prefix, True)
