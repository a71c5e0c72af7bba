"""`vitcli import` refuses what would become a wrong run, and a run with endless logits says so."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.cli.map_pictures import save as save_picture
from typer.testing import CliRunner

from tests.cli.test_import_cmd import FIELDS, save, theirs, vitcli
from vitcli.cli.main import app


@pytest.mark.parametrize("name", ["pretrain-mae", "pretrain-dino", "clip", "ssat"])
def test_an_experiment_that_trains_more_than_an_image_model_is_refused(here, name):
    code, _, talk = vitcli(save(theirs()), "-e", name, "-o", "mine")
    told = f"-e {name} trains more than an image model (task '{name.removeprefix('pretrain-')}'); "
    assert (code, told in talk) == (2, True), talk
    assert not Path("mine").exists()


def test_an_experiment_of_another_family_is_no_place_for_a_model_of_timm(tiny, here):
    words = ("timm:vit_tiny_patch16_224", "--weights", save(theirs()), "-e", "cifar10-resnet18")
    code, _, talk = vitcli(*words, "-o", "mine")
    assert (code, "has the family 'resnet18', and timm:vit_tiny" in talk) == (2, True), talk


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("head.bias", torch.ones(2, dtype=torch.int8), "head.bias has numbers of the type int8"),
        ("head.bias", torch.ones(2, dtype=torch.bool), "head.bias has numbers of the type bool"),
        ("head.bias", torch.tensor([1e300, 0]).double(), "head.bias has values that are not"),
        ("", torch.ones(2), "does not fit the model: '' has no place in the model"),
    ],
)
def test_numbers_that_the_model_cannot_have_are_refused(tiny, here, name, tensor, told):
    safetensors.torch.save_file(theirs().state_dict() | {name: tensor}, "vit.safetensors")
    code, _, talk = vitcli("vit.safetensors", "-e", tiny, "-o", "mine", *FIELDS)
    assert (code, told in talk, talk.count("\n")) == (4, True, 1), talk
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "vit.safetensors: the file is empty\n"),
        (safetensors.torch.save({"x": torch.ones(9)})[:-4], "cut short or no safetensors file ("),
        (safetensors.torch.save({}), "vit.safetensors holds no tensors\n"),
    ],
)
def test_a_file_that_is_no_whole_safetensors_file_is_refused(tiny, here, content, told):
    (here / "vit.safetensors").write_bytes(content)
    code, _, talk = vitcli("vit.safetensors", "-e", tiny, "-o", "mine")
    assert (code, told in talk, talk.count("\n")) == (4, True, 1), talk


def test_a_mean_in_damaged_metadata_is_refused_even_if_the_experiment_has_its_own(tiny, here):
    metadata = {"vitcli": "1", "model": "{}", "mean": '["a"]', "std": "[1, 1, 1]"}
    safetensors.torch.save_file(theirs().state_dict(), "vit.safetensors", metadata)
    own = ("-s", "data.mean=[0.5, 0.5, 0.5]", "-s", "data.std=[1, 1, 1]")
    code, _, talk = vitcli("vit.safetensors", "-e", tiny, "-o", "mine", *FIELDS, *own)
    assert (code, "mean or std in its metadata is damaged" in talk) == (4, True), talk


@pytest.fixture
def endless(tiny, here) -> str:
    """A run whose weights are finite and whose logits are not."""
    model = theirs()
    torch.nn.init.constant_(model.get_parameter("head.weight"), 3e38)
    code, _, talk = vitcli(save(model), "-e", tiny, "-o", "mine", *FIELDS)
    assert code == 0, talk
    return "mine"


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "mine"],
        ["predict", "x.png", "--run", "mine", "--json"],
        ["attn-map", "x.png", "--run", "mine", "-o", "map.png"],
        ["attn-map", "x.png", "--run", "mine", "-o", "map.html", "--live"],
    ],
)
def test_logits_that_are_not_finite_are_an_error_in_one_line(endless, words):
    save_picture("x.png", (8, 8))
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 4
    assert result.stderr.endswith(": a logit is infinite or NaN\n"), result.stderr
    assert result.stdout == ""
    assert not Path("map.png").exists()
    assert not Path("map.html").exists()


def test_one_picture_of_many_with_endless_logits_leaves_the_others(endless, monkeypatch):
    from vitcli.runner.evaluate import predict

    monkeypatch.setattr(
        predict, "logits_and_labels", lambda *_: (torch.tensor([[0.0, 1], [torch.inf, 0]]), None)
    )
    for name in ("a.png", "b.png"):
        save_picture(name, (8, 8))
    result = CliRunner().invoke(app, ["predict", "a.png", "b.png", "--run", "mine", "--json"])
    assert result.exit_code == 3
    first, second = json.loads(result.stdout)
    assert (first["error"], len(first["top"])) == (None, 1)
    assert (second["error"], second["top"]) == ("b.png: a logit is infinite or NaN", [])


def test_features_that_are_not_finite_are_not_explained(tiny, here):
    model = theirs()
    torch.nn.init.constant_(model.blocks[1].mlp.fc2.weight, 3e38)
    assert vitcli(save(model), "-e", tiny, "-o", "mine", *FIELDS)[0] == 0
    result = CliRunner().invoke(app, ["explain", "scale", "--run", "mine"])
    assert result.exit_code == 4
    assert "mine: a feature of the model is infinite or NaN" in result.stderr
