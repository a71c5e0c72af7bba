"""`vitcli attn-map`: a figure, its numbers or an explorer from pictures."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from tests.cli import commands
from tests.cli.commands import save_picture
from tests.cli.conftest import CLS
from tests.explorer_page import attention, parse
from vitcli.cli.options import Fit
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import load_experiment

vitcli = partial(commands.vitcli, "attn-map")
METHODS = ("cls", "rollout", "grad-rollout", "gradcam", "head", "raw")


def written(*words: object) -> dict:
    """The JSON that these words write."""
    code, _, talk = vitcli(*words, "-o", "x.json")
    assert code == 0, talk
    return json.loads(Path("x.json").read_text())


def test_a_figure_is_as_large_as_its_pictures_need(mapped_run):
    path = save_picture("x.jpg", (400, 40))
    assert vitcli(mapped_run, path, "--method", "gradcam", "-o", "x.png")[0] == 0
    with Image.open("x.png") as figure:
        inked = np.asarray(figure.convert("L")) < 250
    for blank in (~inked.any(1), ~inked.any(0)):
        runs = "".join("x" if line else " " for line in blank).split()
        assert max(map(len, runs)) < 70, "a third of an inch at 200 dots an inch"


def test_a_missing_picture_stops_no_other_one_the_second_time_either(mapped_run):
    good = save_picture("good.png", (8, 8))
    for _ in range(2):
        code, out, _ = vitcli(mapped_run, good, "missing.png")
        assert (code, "good" in out) == (3, True)


def test_the_numbers_are_the_models(mapped_run):
    path = save_picture("x.png", (8, 8))
    words = (mapped_run, path, "--format", "npz")
    assert vitcli(*words, "--method", "head", "-o", "x.npz")[0] == 0
    assert vitcli(*words, "--head", "2", "-o", "y.npz")[0] == 0
    data = load_experiment(str(mapped_run / "config.yaml")).spec.data
    pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None].float() / 255
    mean, std = (torch.tensor(row)[None, :, None, None] for row in (data.mean, data.std))
    weights = load_model(str(mapped_run)).attention_weights((pixels - mean) / std)
    with np.load("x.npz") as found:
        grid = found["maps"]
    assert grid.shape == (2, 2, 2, 2)
    for layer in (0, 1):
        row = weights[layer][0, :, 0, 1:].detach().unflatten(-1, (2, 2))
        assert_allclose(grid[layer], row, rtol=1e-4, atol=1e-6)
    with np.load("y.npz") as found:
        assert_allclose(found["maps"], grid[1, 1], rtol=1e-5)
        assert list(found["heads"]) == [2]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_drawn_twice_the_same(mapped_run, method):
    form = ("png", "svg", "pdf")[METHODS.index(method) % 3]
    words = (mapped_run, save_picture("x.png", (20, 12)), "--method", method, "-o")
    for name in "ab":
        assert vitcli(*words, f"{name}.{form}")[0] == 0
    assert Path(f"a.{form}").read_bytes() == Path(f"b.{form}").read_bytes()
    assert written(*words[:-1])["method"] == method


def test_raw_is_every_matrix_with_its_prefix(mapped_run):
    words = (mapped_run, save_picture("x.png", (8, 8)), "--method", "raw")
    assert vitcli(*words, "-o", "x.npz")[0] == 0
    with np.load("x.npz") as file:
        whole = file["maps"]
        assert (whole.shape, file["num_prefix_tokens"]) == ((2, 2, 5, 5), 1), "CLS and 2x2 patches"
    assert_allclose(whole.sum(-1), np.ones((2, 2, 5)), rtol=1e-5)
    part = written(*words, "--layer", "2,1", "--head", "2")
    assert (part["num_prefix_tokens"], part["grid"], part["layers"]) == (1, [2, 2], [2, 1])
    assert_allclose(part["maps"], whole[::-1, 1:], rtol=1e-5)


@pytest.mark.parametrize("method", ["head", "raw"])
def test_heads_may_be_averaged(mapped_run, method):
    words = (mapped_run, save_picture("x.png", (8, 8)), "--method", method, "--head")
    every, mean = (np.array(written(*words, head)["maps"]) for head in ("all", "mean"))
    assert_allclose(mean, every.mean(1, keepdims=True), rtol=1e-6)


def test_a_mean_over_heads_is_refused_where_heads_are(mapped_run):
    words = (mapped_run, save_picture("x.png", (8, 8)), "--method", "rollout", "--head")
    for head in ("1", "mean"):
        code, _, talk = vitcli(*words, head)
        assert (code, "does not take --head" in talk) == (2, True)


def test_grad_cam_uses_the_last_layer_whose_patches_reach_cls(mapped_run):
    words = (mapped_run, save_picture("x.png", (20, 12)), "--method", "gradcam")
    found = {
        layer: written(*words, "--class", "dark", *(["--layer", layer] if layer else []))
        for layer in ("", "1", "0")
    }
    assert found[""]["layers"] == [1], "of two; CLS does not attend to the output of the second"
    assert found[""]["about"] == "dark"
    assert found[""]["maps"] == found["1"]["maps"] != found["0"]["maps"]


def test_a_fit_is_used_by_both_commands(mapped_run):
    path, found = save_picture("wide.png", (80, 20)), {}
    boxes = {"crop": [0, 30, 20, 20], "stretch": [0, 0, 20, 80], "pad": [0, 0, 960, 960]}
    for fit in Fit:
        words = (mapped_run, path, "--fit", fit)
        explanation = written(*words)
        assert (explanation["fit"], explanation["box"]) == (fit, boxes[fit])
        assert explanation["size"] == ([960, 960] if fit == "pad" else [20, 80])
        found[fit] = explanation["maps"]
        (prediction,) = json.loads(commands.vitcli("predict", *words, "--json")[1])
        best = prediction["top"][0]
        assert best["class"] == explanation["class"]
        assert best["probability"] == pytest.approx(explanation["probability"], rel=1e-4)
    assert found["crop"] != found["pad"] != found["stretch"] != found["crop"]


def explorer(*words: object) -> dict:
    """The data of the page that these words write."""
    code, _, talk = vitcli(*words, "--format", "html", "-o", "x.html")
    assert code == 0, talk
    return parse(Path("x.html").read_bytes()).data


def test_the_explorer_holds_the_numbers_of_the_maps(mapped_run):
    path = save_picture("<img src=x onerror=alert(1)>\udcff.png", (8, 8))
    maps = written(mapped_run, path, "--method", "head")["maps"]
    (scene,) = explorer(mapped_run, path)["scenes"]
    assert scene["name"] == "<img src=x onerror=alert(1)>\\udcff.png"
    assert (scene["prefix"], scene["grid"]) == (["CLS"], [2, 2])
    assert_allclose(attention(scene)[:, :, 0, 1:].reshape(2, 2, 2, 2), maps, atol=1 / 255)


OPENING = {"layer": 2, "head": None, "rollout": False, "query": None}


@pytest.mark.parametrize(
    ("words", "changes", "layers"),
    [
        ([], {}, [1, 2]),
        (["--method", "rollout"], {"rollout": True}, [1, 2]),
        (["--head", "2"], {"head": 2}, [1, 2]),
        (["--layer", "2,1"], {"layer": 1}, [2, 1]),
        (["--query", "0.9,0.1"], {"query": [0, 1]}, [1, 2]),
    ],
)
def test_the_explorer_opens_with_the_requested_view(mapped_run, words, changes, layers):
    data = explorer(mapped_run, save_picture("x.png", (20, 12)), *words)
    assert data["opening"] == OPENING | changes
    assert data["scenes"][0]["layers"] == layers
    assert data["scenes"][0]["box"] == pytest.approx([0.2, 0, 0.6, 1])


def test_every_picture_gets_a_page_and_one_with_the_model_inside(mapped_run):
    paths = [save_picture(name, (10, 10)) for name in ("a.png", "b.png")]
    for words, kind in (([], "explorer"), (["--live", "--layer", "1"], "live")):
        code, out, _ = vitcli(mapped_run, *paths, "--format", "html", *words)
        assert code == 0
        files = [line.split()[-1] for line in out.splitlines()]
        assert files == [f"a-{kind}.html", f"b-{kind}.html"]
        data = parse(Path(files[1]).read_bytes()).data
        assert [scene["name"] for scene in data["scenes"]] == ["b.png"]
    assert len(data["scenes"][0]["logits"]) == 2
    assert (data["opening"], data["about"]["layers"]) == (OPENING | {"layer": 1}, [1, 2])


def test_the_default_method_fits_the_options(mapped_run):
    words = (mapped_run, save_picture("x.png", (8, 8)))
    found = [written(*words, *more)["method"] for more in ([], ["--class", "dark"])]
    assert found == ["cls", "grad-rollout"]
    assert written(*words, "--query", "0,1")["method"] == "cls"


def test_without_cls_the_method_that_fits_is_taken_or_named(copy_of_run, here):
    words = (copy_of_run(here / "run", {"train.epochs": 1}), save_picture("x.png", (8, 8)))
    assert written(*words)["method"] == "grad-rollout"
    # Named layers and a page ask for a map without a class.
    assert written(*words, "--layer", "1")["method"] == "rollout"
    assert explorer(*words)["opening"]["rollout"]
    assert vitcli(*words, "--method", "cls")[0] == 2
    assert vitcli(*words, "--method", "cls", "--query", "0,1")[0] == 0


@pytest.mark.parametrize("row", [name for name in ATTENTIONS if name != "softmax"])
def test_every_attention_has_a_map_or_says_why_not(copy_of_run, here, row):
    run = copy_of_run(here / "run", CLS | {"train.epochs": 0, "model.attention": row})
    picture = save_picture("x.png", (8, 8))
    for method in METHODS:
        code, _, talk = vitcli(run, picture, "--method", method, "-o", "m.json")
        refused = row == "linformer" and method != "gradcam"
        assert (code, "mixtures of all tokens" in talk) == (2 * refused, refused), talk
    code, _, talk = vitcli(run, picture, "--format", "html", "-o", "m.html")
    assert code == (2 if row == "linformer" else 0), talk
    if row == "linformer":
        words = (run, "--what", "heads,distance,faithfulness", "--num-images", 4)
        code, _, talk = commands.vitcli("visualize", *words)
        assert (code, "'linformer' has no attention matrix" in talk) == (0, True), talk
