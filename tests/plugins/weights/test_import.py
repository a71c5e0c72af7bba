"""`vitcli import`: other programs' weights become a run that computes the same logits."""

import argparse
import errno
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.cli.commands import said, save_picture, vitcli
from tests.plugins.conftest import few_pictures as pictures
from tests.plugins.weights.importing import FIELDS, State, same_logits, save, theirs
from vitcli.plugins.probe.probe import probe_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.folder import RunDir

__all__ = ["pictures"]


def test_a_model_of_timm_keeps_its_logits_and_can_be_measured(tiny, here):
    model = theirs()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, here / "vit.pt")
    said(0, "import", "vit.pt", tiny, "-o", "mine", *FIELDS)
    same_logits("mine", model)
    assert 0 <= evaluate_run("mine").scores.accuracy <= 1
    assert 0 <= probe_run("mine", "knn")[1] <= 1
    said(2, "import", "vit.pt", tiny, "-o", "mine", *FIELDS)  # nothing is overwritten
    said(0, "runs", "verify", "mine")
    assert "--init mine" in said(2, "train", "--resume", "mine")
    said(4, "export", "mine", "--format", "card", "-o", "card.md")


@pytest.mark.parametrize(
    ("fields", "tensor"),
    [
        ({"depth": 1}, "blocks.1.norm1.weight"),
        ({"mlp_ratio": 1.0}, "mlp.fc1.weight"),
        ({"num_classes": 0}, "head.weight"),
        ({"qk_norm": True}, "q_norm"),
    ],
)
def test_another_model_is_refused_by_its_differences(tiny, here, fields, tensor):
    """They would change the logits. CIFAR-10 is not here, so no image was read."""
    file = save(theirs(**fields))
    words = ("-s", "data.name=cifar10") if "depth" in fields else ()
    talk = said(4, "import", file, tiny, "-o", "mine", *FIELDS, *words)
    assert (tensor in talk, talk.count("\n"), Path("mine").exists()) == (True, 1, False), talk


def test_an_export_of_vitcli_states_its_settings(tiny, here):
    """Its mean and std are used, unless the experiment has its own; nothing else is missing."""
    words = ("-s", "data.mean=[0.1, 0.2, 0.3]", "-s", "data.std=[1, 2, 3]", *FIELDS)
    said(0, "import", save(theirs()), tiny, "-o", "first", *words)
    said(0, "export", "first", "--format", "safetensors")
    again = ("import", "first.safetensors", tiny, *FIELDS, "-o")
    assert "note:" not in said(0, *again, "second")
    data = RunDir(Path("second")).spec().data
    assert (data.mean, data.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    said(0, *again, "third", "-s", "data.mean=[0.5, 0.5, 0.5]")
    assert RunDir(Path("third")).spec().data.mean == (0.5, 0.5, 0.5)
    talk = said(0, *again, "fourth", "-s", "model.ffn=relu", "-s", "model.drop_path=0.1")
    assert "those of the experiment are used: model.ffn=relu\n" in talk, "no tensor shows it"


def test_the_classes_of_timm_are_brought_into_our_order(tiny, here, pictures):
    """timm sorts folders naturally and without case: class 2 comes before class 10."""
    for split in ("train", "test"):
        (pictures / split / "bright").rename(pictures / split / "10")
        (pictures / split / "dark").rename(pictures / split / "2")
    model = theirs()
    file, images = save(model), torch.randn(3, 3, 8, 8)
    wanted = {None: [0, 1], "natural": [1, 0], "2,10": [1, 0], "10,2": [0, 1]}
    for i, (order, rows) in enumerate(wanted.items()):
        words = ["--class-order", order] if order else []
        talk = said(0, "import", file, tiny, "-o", f"mine{i}", *FIELDS, *words)
        assert ("--class-order" in talk) == (order is None), talk
        ours = load_model(f"mine{i}")(images)
        torch.testing.assert_close(ours, model(images)[:, rows], atol=1e-5, rtol=1e-5)
    said(2, "import", file, tiny, "-o", "no", *FIELDS, "--class-order", "2,2")


def test_an_order_of_the_classes_leaves_the_hidden_layer_of_a_head(tiny, here):
    """It has as many rows as there are classes."""
    words = ("-s", "model.head=mlp", "-s", "model.embed_dim=2", "-s", "model.num_heads=1", tiny)
    said(0, "train", *words, "-o", "run", "-s", "train.epochs=1")
    said(0, "export", "run", "--format", "safetensors")
    said(0, "import", "run.safetensors", *words, "-o", "mine", "--class-order", "dark,bright")
    images = torch.randn(3, 3, 8, 8)
    ours, theirs = (load_model(run)(images) for run in ("mine", "run"))
    torch.testing.assert_close(ours, theirs.flip(1))


class Canary:
    def __reduce__(self):
        return os.system, ("touch canary",)


def saved(value: object, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


REFUSED = {
    "hostile.pt": saved({"weight": Canary()}),
    "hostile old.pt": saved({"weight": Canary()}, _use_new_zipfile_serialization=False),
    "bare pickle.pt": pickle.dumps({"weight": Canary()}),
    "model.pt": saved(theirs()),
    "empty.pt": b"",
    "cut.pt": saved({"weight": torch.zeros(100)})[:-40],
    "list.pt": saved([torch.zeros(2)]),
    "sparse.pt": saved({"weight": torch.eye(2).to_sparse()}),
    "meta.pt": saved({"head.weight": torch.zeros(2, 16, device="meta")}),
    "none.safetensors": safetensors.torch.save({}),
    "forged.safetensors": safetensors.torch.save({"\x1b[1mx\nerror: forged": torch.ones(2)}),
}


@pytest.mark.parametrize("file", REFUSED)
def test_hostile_and_damaged_files_are_one_line_and_run_nothing(tiny, here, file):
    Path(file).write_bytes(REFUSED[file])
    talk = said(4, "import", file, tiny, "-o", "mine")
    assert talk.startswith(f"error: {file}"), talk
    assert (talk.count("\n"), "\x1b" in talk, Path("mine").exists()) == (1, False, False), talk
    assert not Path("canary").exists()


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


OTHERS = {"head.mlp.0.weight": torch.ones(3, 3), "centre.ema": torch.tensor(0)}
MOMENTS = {"state": {0: {"exp_avg": torch.ones(16), "step": torch.tensor(3.0)}}}
OPTIONS = argparse.Namespace(lr=1e-3, model="vit_x", crops=[1, 2])
CHECKPOINTS: dict[str, Callable[[State, State], Any]] = {
    "deit": lambda raw, ema: {"model": raw, "model_ema": ema, "args": OPTIONS},
    "ema": lambda raw, ema: {"model": raw, "ema": {"decay": 0.9, "model": ema}},
    "dino": lambda raw, ema: {
        "student": prefixed("module.backbone.", raw),
        "teacher": prefixed("backbone.", ema) | OTHERS,
        "args": OPTIONS,
    },
    "no average": lambda raw, ema: {"model": ema, "ema": {"decay": 0.9}, "args": OPTIONS},
    "metrics": lambda raw, ema: {"state_dict": OTHERS | prefixed("model.", ema), "loops": {}},
    "swa": lambda raw, ema: {"model": raw, "model_swa": ema},
    "only the best": lambda raw, ema: {"best_state": ema, "epoch": 3, "optim": MOMENTS},
    "lightning": lambda raw, ema: {
        "state_dict": prefixed("model.", raw) | prefixed("ema_model.module.", ema),
        "optimizer_states": [MOMENTS],
    },
    "AveragedModel": lambda raw, ema: {
        "model": raw,
        "averaged_model": {"n_averaged": torch.tensor(3)} | prefixed("module.", ema),
        "optimizer": MOMENTS,
    },
    "a part averaged": lambda raw, ema: {"model": ema, "ema": {"head.weight": raw["head.weight"]}},
}


NOTES = {
    "deit": ("model_ema.*", "model.*"),
    "ema": ("ema.model.*", "model.*"),
    "dino": ("teacher.backbone.*", "student.module.backbone.*"),
    "swa": ("model_swa.*", "model.*"),
    "lightning": ("state_dict.ema_model.module.*", "state_dict.model.*"),
    "AveragedModel": ("averaged_model.module.*", "model.*"),
}
"""What is read of a checkpoint, and what is left out."""


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_averaged_weights_of_a_checkpoint_are_read_and_those_left_out_are_named(tiny, here, name):
    model = theirs()
    raw = {key: torch.full_like(tensor, 0.5) for key, tensor in model.state_dict().items()}
    torch.save(CHECKPOINTS[name](raw, dict(model.state_dict())), here / "vit.pth")
    talk = said(0, "import", "vit.pth", tiny, "-o", "mine", *FIELDS)
    same_logits("mine", model)
    left = re.findall(r"holds several models: (.*) is read, (.*) is left out", talk)
    assert left == ([NOTES[name]] if name in NOTES else [])


def test_tensors_that_the_model_cannot_have_are_refused(tiny, here):
    state = theirs().state_dict()
    wrong = [{"head.bias": torch.ones(2).char()}, {"head.bias": torch.tensor([1e300, 0]).double()}]
    for given in (*(state | w for w in wrong), {"best_state": state, "net": state}):
        torch.save(given, "vit.pt")
        said(4, "import", "vit.pt", tiny, "-o", "mine", *FIELDS)
        assert not Path("mine").exists()


@pytest.mark.parametrize("words", ["eval mine", "attn-map mine x.png -o map.png"])
def test_logits_that_are_not_finite_are_an_error_in_one_line(tiny, here, words):
    """The weights of the run are finite."""
    model = theirs()
    torch.nn.init.constant_(model.get_parameter("head.weight"), 3e38)
    said(0, "import", save(model), tiny, "-o", "mine", *FIELDS)
    save_picture("x.png", (8, 8))
    code, out, talk = vitcli(*words.split())
    assert (code, out, talk.endswith(": a logit is infinite or NaN\n")) == (4, "", True), talk
    assert not Path("map.png").exists()


@pytest.mark.parametrize("room", range(5))
def test_a_full_disk_leaves_no_run_and_does_not_block_the_next_import(
    tiny, here, monkeypatch, room
):
    words = ("import", save(theirs()), tiny, "-o", "mine", *FIELDS)
    real, written = os.replace, []

    def replace(source, target):
        if len(written) == room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        said(5, *words)
    said(4, "eval", "mine")
    said(0, *words)
    said(0, "runs", "verify", "mine")
