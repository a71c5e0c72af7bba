"""A run of imported weights: the order of its classes, and what to do with it next."""

import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.test_import_cmd import FIELDS, save, theirs, vitcli
from vitcli.cli.main import app
from vitcli.runner.evaluate.weights import load_model
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


def test_the_command_that_trains_imported_weights_can_be_typed():
    words = shlex.split(tuning_command(RunDir(Path("my weights/mine")), Path("my data")))
    assert {"my weights/mine/config.yaml", "my weights/mine", "my data"} <= {*words}


@pytest.mark.parametrize("prefix", ["net.", "backbone.", "model.backbone.", "module.net."])
def test_prefixes_of_wrappers_are_left_out(prefix):
    naming = naming_of([prefix + name for name in theirs().state_dict()])
    assert (naming.prefix, naming.is_timm) == (prefix, True)
