"""`vitcli import` of checkpoints that hold more than one set of weights."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch

from tests.cli.test_import_cmd import FIELDS, save, theirs, vitcli
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.weights.names import naming_of
from vitcli.runner.weights.timm_weights import guess_name
from vitcli.runner.weights.unpickle import find_state

State = dict[str, torch.Tensor]


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


OTHERS = {"head.mlp.0.weight": torch.ones(3, 3), "centre.ema": torch.tensor(0)}
OPTIONS = argparse.Namespace(lr=1e-3, model="vit_x", crops=[1, 2])
CHECKPOINTS: dict[str, tuple[Callable[[State, State], Any], str]] = {
    "timm": (lambda raw, ema: {"state_dict": raw, "state_dict_ema": ema}, "'state_dict_ema'"),
    "deit": (lambda raw, ema: {"model": raw, "model_ema": ema, "args": OPTIONS}, "'model_ema'"),
    "ema": (lambda raw, ema: {"model": raw, "ema": {"decay": 0.9, "model": ema}}, "'ema'"),
    "dino": (
        lambda raw, ema: {
            "student": prefixed("module.backbone.", raw),
            "teacher": prefixed("backbone.", ema) | OTHERS,
            "args": OPTIONS,
        },
        "'teacher'",
    ),
    "one dict": (
        lambda raw, ema: {"state_dict": prefixed("student.", raw) | prefixed("teacher.", ema)},
        "student.",
    ),
    "no average": (lambda raw, ema: {"model": ema, "ema": {"decay": 0.9}, "args": OPTIONS}, ""),
    "metrics": (
        lambda raw, ema: {"state_dict": OTHERS | prefixed("model.", ema), "loops": {}},
        "left out",
    ),
    "params": (lambda raw, ema: {"params": ema}, ""),
    "a wrapper": (lambda raw, ema: prefixed("vit.", ema), ""),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_averaged_weights_are_read_and_what_is_not_read_is_named(tiny, here, name):
    make, told = CHECKPOINTS[name]
    model = theirs()
    raw = {key: torch.full_like(tensor, 0.5) for key, tensor in model.state_dict().items()}
    torch.save(make(raw, dict(model.state_dict())), here / "vit.pth")
    code, _, talk = vitcli("vit.pth", "-e", tiny, "-o", "mine", *FIELDS)
    assert code == 0, talk
    notes = [line for line in talk.splitlines() if line.startswith("note: vit.pth")]
    count = {"": 0, "'teacher'": 2}.get(told, 1)  # the teacher, and the tensors beside it
    assert (len(notes), told in "".join(notes)) == (count, True), talk
    images = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(load_model("mine")(images), model(images), atol=1e-5, rtol=1e-5)


def test_two_models_of_which_none_is_an_average_are_refused(tiny, here):
    state = theirs().state_dict()
    torch.save(prefixed("left.", state) | prefixed("right.", state), here / "vit.pth")
    code, _, talk = vitcli("vit.pth", "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, "left., right." in talk) == (4, True), talk


def test_weights_without_a_head_are_told_how_they_get_one(tiny, here):
    model = theirs()
    model.head = torch.nn.Identity()
    code, _, talk = vitcli(save(model), "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, "vitcli import timm:auto --weights" in talk) == (4, True), talk


def test_options_of_a_program_are_read_as_plain_values():
    """Nothing else about the restricted reading changes: see the hostile files."""
    state, note = find_state({"args": OPTIONS, "model": {"weight": torch.zeros(2)}})
    assert (list(state), note) == (["weight"], "")


def test_a_decoder_beside_the_encoder_is_no_second_model():
    names = ["patch_embed.proj.weight", "decoder_blocks.0.norm1.weight", "blocks.0.norm1.weight"]
    assert (naming_of(names).prefix, naming_of(names).is_timm) == ("", True)


def test_few_models_of_timm_are_built_to_recognise_a_file(here, monkeypatch):
    """None for a file without attention; otherwise whole models only where the rest fits."""
    built: list[int | None] = []
    create = timm.create_model

    def count(name: str, **options: Any) -> Any:
        built.append(options.get("depth"))
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", count)
    with pytest.raises(InputError, match="not a Vision Transformer"):
        guess_name({"weight": torch.zeros(3)}, here / "x.pt", print)
    assert built == []
    with pytest.raises(InputError, match="exactly these tensors"):
        guess_name(theirs().state_dict(), here / "x.pt", print)
    assert {*built} == {0}
    built.clear()
    model = create("test_vit")
    assert guess_name(model.state_dict(), here / "x.pt", print) == "test_vit"
    assert 1 <= built.count(None) <= 5
