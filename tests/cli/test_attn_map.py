"""`vitcli attn-map`: a figure or its numbers from pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from tests.cli.commands import document, said, save_picture
from tests.cli.conftest import CLS
from tests.plugin_rows import has
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import load_experiment


def written(*words: object) -> dict:
    said(0, "attn-map", *words, "-o", "x.json")
    return json.loads(Path("x.json").read_text())


@pytest.mark.seam
def test_the_numbers_are_the_models(mapped_run):
    words = (mapped_run, save_picture("x.png", (8, 8)), "--method", "head")
    data = load_experiment(str(mapped_run / "config.yaml")).spec.data
    pixels = torch.from_numpy(np.array(Image.open("x.png"))).permute(2, 0, 1)[None].float() / 255
    mean, std = (torch.tensor(row)[None, :, None, None] for row in (data.mean, data.std))
    weights = load_model(str(mapped_run)).attention_weights((pixels - mean) / std)
    maps = [weights[layer][0, :, 0, 1:].detach().unflatten(-1, (2, 2)) for layer in (0, 1)]
    for head, wanted in (
        ("all", maps),
        ("mean", [layer.mean(0, keepdim=True) for layer in maps]),
        ("2", [layer[1:] for layer in maps]),
    ):
        assert_allclose(written(*words, "--head", head)["maps"], wanted, rtol=1e-4, atol=1e-6)


def test_a_class_and_a_layer_may_be_chosen(mapped_run):
    words = (mapped_run, save_picture("x.png", (20, 12)), "--method", "gradcam", "--class")
    dark, bright = (written(*words, name) for name in ("dark", "bright"))
    assert (dark["about"], dark["layers"]) == ("dark", [1]), "no CLS reads the second's output"
    assert dark["maps"] != bright["maps"]
    assert written(*words, "dark", "--layer", "0")["maps"] != dark["maps"]


def test_a_fit_is_used_by_both_commands(mapped_run):
    path, found = save_picture("wide.png", (80, 20)), {}
    for fit, size in (("crop", [20, 80]), ("stretch", [20, 80]), ("pad", [960, 960])):
        words = (mapped_run, path, "--fit", fit)
        explanation = written(*words)
        assert (explanation["fit"], explanation["size"]) == (fit, size)
        found[fit] = explanation["maps"]
        best = document("predict", *words)["top"][0]
        assert best["class"] == explanation["class"]
        assert best["probability"] == pytest.approx(explanation["probability"], rel=1e-4)
    assert found["crop"] != found["pad"] != found["stretch"] != found["crop"]


def test_both_commands_read_pages_and_levels_as_the_training_and_say_what_is_left(
    mapped_run, copy_of_run, here
):
    values = np.random.default_rng(0).integers(0, 4096, (12, 12), dtype="u2")
    pages = [Image.fromarray(page) for page in (values, 4095 - values)]
    pages[0].save("x.tif", save_all=True, append_images=pages[1:])
    fields = {"data.channels": "grey", "data.levels": 4095}
    read = copy_of_run(here / "read", CLS | fields | {"train.epochs": 0})
    for run, num_notes in ((mapped_run, 2), (read, 1)):
        explanation = document("attn-map", run, "x.tif", "-o", "x.json")
        best = document("predict", run, "x.tif")
        assert len(explanation["notes"]) == num_notes
        assert explanation["notes"] == best["notes"][-num_notes:]
        row = explanation["pictures"][0]
        assert best["top"][0]["class"] == row["class"]
        assert best["top"][0]["probability"] == pytest.approx(row["probability"], rel=1e-4)


def test_without_cls_the_method_that_fits_is_taken_or_named(copy_of_run, here):
    words = (copy_of_run(here / "run", {"train.epochs": 1}), save_picture("x.png", (8, 8)))
    assert written(*words)["method"] == "grad-rollout"
    assert written(*words, "--layer", "1")["method"] == "rollout", "a map without a class"
    said(2, "attn-map", *words, "--method", "cls")
    assert written(*words, "--query", "0,1")["method"] == "cls"


@pytest.mark.parametrize("row", [name for name in ATTENTIONS if name != "softmax"])
def test_every_attention_has_a_map_or_is_refused(copy_of_run, here, row):
    run = copy_of_run(here / "run", CLS | {"train.epochs": 0, "model.attention": row})
    words = ("attn-map", run, save_picture("x.png", (8, 8)), "-o", "x.json")
    said(0, *words, "--method", "gradcam")
    for option in ("--method=rollout", "--method=grad-rollout", "--method=raw"):
        said(2 if row == "linformer" else 0, *words, option)
    if has("live"):
        said(2 if row == "linformer" else 0, *words[:-1], "x.html")
    if row == "linformer":
        said(0, "visualize", run, "--what", "heads", "--num-images", 4)
