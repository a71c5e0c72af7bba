"""`vitcli attn-map`: a figure, its numbers or an explorer from pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

from tests.cli.map_pictures import CLS, save, vitcli
from tests.explorer_page import attention, parse
from vitcli.cli.main import app
from vitcli.cli.options import Fit
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start


@pytest.mark.parametrize("size", [(300, 90), (400, 40), (100, 100), (60, 200)])
def test_a_figure_is_as_large_as_its_pictures_need(mapped_run, size):
    assert (
        vitcli(save("x.jpg", size), "--run", mapped_run, "--method", "gradcam", "-o", "x.png")[0]
        == 0
    )
    with Image.open("x.png") as figure:
        inked = np.asarray(figure.convert("L")) < 250
    for blank in (~inked.any(1), ~inked.any(0)):
        runs = "".join("x" if line else " " for line in blank).split()
        assert max(map(len, runs)) < 70, "a third of an inch at 200 dots an inch"


def test_the_numbers_are_the_models(mapped_run):
    path = save("x.png", (8, 8))
    assert (
        vitcli(path, "--run", mapped_run, "--method", "head", "--format", "npz", "-o", "x.npz")[0]
        == 0
    )
    assert (
        vitcli(path, "--run", mapped_run, "--head", "2", "--format", "npz", "-o", "y.npz")[0] == 0
    )
    model, spec = load_model(str(mapped_run)), json.loads((mapped_run / "meta.json").read_text())
    assert spec["experiment"] == "tiny"
    data = load_experiment(str(mapped_run / "config.yaml")).spec.data
    pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None].float() / 255
    mean, std = (torch.tensor(row)[None, :, None, None] for row in (data.mean, data.std))
    weights = model.attention_weights((pixels - mean) / std)
    with np.load("x.npz") as found:
        assert found["maps"].shape == (2, 2, 2, 2)
        for layer in (0, 1):
            row = weights[layer][0, :, 0, 1:].detach().unflatten(-1, (2, 2))
            assert_allclose(found["maps"][layer], row, rtol=1e-4, atol=1e-6)
        grid = found["maps"]
    with np.load("y.npz") as found:
        assert_allclose(found["maps"], grid[1, 1], rtol=1e-5)
        assert list(found["heads"]) == [2]


@pytest.mark.parametrize("form", ["png", "svg", "pdf", "npz", "json"])
@pytest.mark.parametrize("method", ["cls", "rollout", "grad-rollout", "gradcam", "head", "raw"])
def test_every_method_in_every_format_twice_the_same(mapped_run, method, form):
    path = save("x.png", (20, 12))
    words = (path, "--run", mapped_run, "--method", method, "--format", form, "-o")
    assert vitcli(*words, f"a.{form}")[0] == 0
    assert vitcli(*words, f"b.{form}")[0] == 0
    first = Path(f"a.{form}").read_bytes()
    assert first == Path(f"b.{form}").read_bytes()
    if form == "json":
        assert json.loads(first)["method"] == method


def test_raw_is_every_matrix_with_its_prefix(mapped_run):
    words = (save("x.png", (8, 8)), "--run", mapped_run, "--method", "raw", "-o")
    assert vitcli(*words, "x.npz")[0] == 0
    assert vitcli(*words, "x.json", "--layer", "2,1", "--head", "2")[0] == 0
    with np.load("x.npz") as file:
        whole = file["maps"]
        assert whole.shape == (2, 2, 5, 5), "CLS and 2x2 patches"
        assert file["num_prefix_tokens"] == 1
        assert_allclose(whole.sum(-1), np.ones((2, 2, 5)), rtol=1e-5)
    part = json.loads(Path("x.json").read_text())
    assert (part["num_prefix_tokens"], part["grid"], part["layers"]) == (1, [2, 2], [2, 1])
    assert_allclose(part["maps"], whole[::-1, 1:], rtol=1e-5)


@pytest.mark.parametrize("method", ["head", "raw"])
def test_heads_may_be_averaged(mapped_run, method):
    words = (save("x.png", (8, 8)), "--run", mapped_run, "--method", method)
    for head, name in (("all", "all"), ("mean", "mean")):
        assert vitcli(*words, "--head", head, "-o", f"{name}.npz")[0] == 0
    with np.load("all.npz") as every, np.load("mean.npz") as mean:
        assert mean["maps"].shape[1] == 1
        assert_allclose(mean["maps"][:, 0], every["maps"].mean(1), rtol=1e-6)
    assert vitcli(*words, "--head", "mean", "-o", "mean.png")[0] == 0


def test_grad_cam_uses_the_last_layer_whose_patches_reach_cls(mapped_run):
    words = (save("x.png", (20, 12)), "--run", mapped_run, "--method", "gradcam", "-o", "x.json")
    found = {}
    for layer in ("", "1", "0"):
        option = ("--layer", layer) if layer else ()
        assert vitcli(*words, "--class", "dark", *option)[0] == 0
        found[layer] = json.loads(Path("x.json").read_text())
    assert found[""]["layers"] == [1], "of two; CLS does not attend to the output of the second"
    assert found[""]["about"] == "dark"
    assert found[""]["maps"] == found["1"]["maps"] != found["0"]["maps"]


def test_a_fit_is_used_by_both_commands(mapped_run):
    path = save("wide.png", (80, 20))
    words = (path, "--run", mapped_run, "--format", "json", "-o", "x.json", "--fit")
    found = {}
    for fit in Fit:
        assert vitcli(*words, fit)[0] == 0
        explanation = json.loads(Path("x.json").read_text())
        box, found[fit] = explanation["box"], explanation["maps"]
        assert explanation["fit"] == fit
        assert box == {"crop": [0, 30, 20, 20], "stretch": [0, 0, 20, 80]}.get(
            fit, [0, 0, 960, 960]
        )
        result = CliRunner().invoke(
            app, ["predict", path, "--run", str(mapped_run), "--fit", fit, "--json"]
        )
        best = json.loads(result.stdout)[0]["top"][0]
        assert best["class"] == explanation["class"]
        assert best["probability"] == pytest.approx(explanation["probability"], rel=1e-4)
    assert found["crop"] != found["pad"] != found["stretch"] != found["crop"]
    assert vitcli(path, "--run", mapped_run, "--fit", "squeeze")[0] == 2


def explorer(*words: object) -> dict:
    """The data of the page that these words write."""
    code, _, talk = vitcli(*words, "--format", "html", "-o", "x.html")
    assert code == 0, talk
    return parse(Path("x.html").read_bytes()).data


def test_the_explorer_holds_the_numbers_of_the_maps(mapped_run):
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", mapped_run, "--method", "head", "-o", "x.npz")[0] == 0
    (scene,) = explorer(path, "--run", mapped_run)["scenes"]
    assert (scene["name"], scene["prefix"], scene["grid"]) == ("x.png", ["CLS"], [2, 2])
    with np.load("x.npz") as found:
        patches = attention(scene)[:, :, 0, 1:].reshape(2, 2, 2, 2)
        assert_allclose(patches, found["maps"], atol=1 / 255)


OPENING = {"layer": 2, "head": None, "rollout": False, "query": None}


@pytest.mark.parametrize(
    ("words", "changes", "layers"),
    [
        ([], {}, [1, 2]),
        (["--method", "rollout"], {"rollout": True}, [1, 2]),
        (["--method", "head"], {"head": 1}, [1, 2]),
        (["--head", "2"], {"head": 2}, [1, 2]),
        (["--layer", "1"], {"layer": 1}, [1]),
        (["--layer", "2,1"], {"layer": 1}, [2, 1]),
        (["--query", "0.9,0.1"], {"query": [0, 1]}, [1, 2]),
    ],
)
def test_the_explorer_opens_with_the_requested_view(mapped_run, words, changes, layers):
    data = explorer(save("x.png", (20, 12)), "--run", mapped_run, *words)
    assert data["opening"] == OPENING | changes
    assert data["scenes"][0]["layers"] == layers
    assert data["scenes"][0]["box"] == pytest.approx([0.2, 0, 0.6, 1])


def test_every_picture_gets_an_explorer_of_its_own(mapped_run):
    paths = [save(name, (10, 10)) for name in ("a.png", "b.jpg")]
    code, out, _ = vitcli(*paths, "--run", mapped_run, "--format", "html")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["a-explorer.html", "b-explorer.html"]
    for path in paths:
        page = parse(Path(f"{Path(path).stem}-explorer.html").read_bytes())
        assert [scene["name"] for scene in page.data["scenes"]] == [path]


def test_every_picture_gets_a_page_with_the_model_inside(mapped_run):
    paths = [save(name, (10, 10)) for name in ("a.png", "b.png")]
    words = ["--run", mapped_run, "--format", "html", "--live", "--layer", "1"]
    code, out, _ = vitcli(*paths, *words)
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["a-live.html", "b-live.html"]
    data = parse(Path("b-live.html").read_bytes()).data
    assert [scene["name"] for scene in data["scenes"]] == ["b.png"]
    assert len(data["scenes"][0]["logits"]) == 2
    assert (data["opening"], data["about"]["layers"]) == (OPENING | {"layer": 1}, [1, 2])


def test_a_file_name_that_is_a_script_is_a_name(mapped_run):
    name = "<img src=x onerror=alert(1)>\udcff.png"
    (scene,) = explorer(save(name, (8, 8)), "--run", mapped_run)["scenes"]
    assert scene["name"] == "<img src=x onerror=alert(1)>\\udcff.png"


def test_the_name_after_o_says_the_format(mapped_run):
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", mapped_run, "-o", "y.svg")[0] == 0
    assert Path("y.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("words", "method"),
    [([], "cls"), (["--class", "dark"], "grad-rollout"), (["--query", "0,1"], "cls")],
)
def test_the_default_method_fits_the_options(mapped_run, words, method):
    assert vitcli(save("x.png", (8, 8)), "--run", mapped_run, "-o", "x.json", *words)[0] == 0
    assert json.loads(Path("x.json").read_text())["method"] == method


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--layer", "3"], 2, "--layer: layer 3 is out of range: the model has layers 1 to 2"),
        (["--layer", "x"], 2, "--layer takes numbers such as 1"),
        (["--head", "3"], 2, "--head 3 is out of range: the model has heads 1 to 2"),
        (["--class", "brigth"], 2, "--class brigth: no such class; did you mean 'bright'?"),
        (["--class", "zigzag"], 2, "zigzag: no such class; mapped has the classes bright, dark"),
        (
            ["--class", "dark", "--method", "cls"],
            2,
            "--method cls does not take --class; these methods do: grad-rollout, gradcam",
        ),
        (
            ["--head", "1", "--method", "rollout"],
            2,
            "does not take --head; these methods do: cls, head",
        ),
        (
            ["--layer", "1", "--method", "grad-rollout"],
            2,
            "--method grad-rollout does not take --layer",
        ),
        (["--query", "0,0", "--method", "gradcam"], 2, "--method gradcam does not take --query"),
        (["--layer", "1,2", "--method", "gradcam"], 2, "--layer: gradcam takes only one layer"),
        (["--layer", "-1", "--method", "gradcam"], 2, "do not reach CLS, and the classifier reads"),
        (
            ["--format", "html", "--method", "grad-rollout"],
            2,
            "--format html cannot show grad-rollout, which explains one class; use --format png",
        ),
        (["--format", "html", "--class", "dark"], 2, "--format html cannot show grad-rollout"),
        (["--format", "html", "--method", "gradcam"], 2, "--format html cannot show gradcam"),
        (["-o", "x.html", "--smooth"], 2, "--format html shows the patches as they are"),
        (["--live"], 2, "--live needs --format html"),
        (["--live", "-o", "x.npz"], 2, "--live needs --format html"),
        (
            ["--live", "-o", "x.html", "--fit", "pad"],
            2,
            "--live fits photos with crop; leave out --fit pad",
        ),
        (["-o", "x.gif"], 2, "-o x.gif: the name does not fit any format; use .png, .svg"),
        (["-o", "y.svg", "--format", "png"], 2, "-o y.svg: the name does not fit png; use .png"),
        (["--query", "2,0"], 2, "--query takes x and y between 0 and 1"),
        (["--query", "left"], 2, "--query takes x and y between 0 and 1"),
        (["--run", "nothing"], 4, "nothing"),
        (["empty"], 4, "empty: no picture in this folder"),
        (["y.png", "-o", "one.png"], 2, "-o one.png: 2 pictures need a folder"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(mapped_run, words, code, told):
    Path("empty").mkdir()
    files = [save("x.png", (8, 8)), save("y.png", (8, 8))][: 1 if words != ["empty"] else 0]
    named = [] if "--run" in words else ["--run", mapped_run]
    found, out, talk = vitcli(*files, *words, *named)
    assert (found, out) == (code, "")
    assert told in talk
    assert len([line for line in talk.splitlines() if line.startswith("error")]) == 1


def test_without_cls_the_method_that_fits_is_taken_or_named(tiny, here):
    experiment = load_experiment(str(tiny), {"train.epochs": 1})
    run = start(experiment, Request(output=here / "runs" / "pooled")).run.path
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", run, "--format", "json", "-o", "x.json")[0] == 0
    assert json.loads(Path("x.json").read_text())["method"] == "grad-rollout"
    # Named layers and a page ask for a map without a class.
    assert vitcli(path, "--run", run, "--layer", "1", "-o", "x.json")[0] == 0
    assert json.loads(Path("x.json").read_text())["method"] == "rollout"
    assert explorer(path, "--run", run)["opening"]["rollout"]
    code, _, talk = vitcli(path, "--run", run, "--method", "cls")
    assert code == 2
    assert "no CLS token" in talk
    assert vitcli(path, "--run", run, "--method", "cls", "--query", "0,1")[0] == 0


@pytest.mark.parametrize("row", [name for name in ATTENTIONS if name != "softmax"])
def test_every_attention_has_a_map_or_says_why_not(tiny, here, row):
    experiment = load_experiment(str(tiny), CLS | {"train.epochs": 1, "model.attention": row})
    path = start(experiment, Request(output=here / "runs" / row)).run.path
    picture = save("x.png", (8, 8))
    for method in ("cls", "rollout", "grad-rollout", "head", "raw", "gradcam"):
        code, _, talk = vitcli(picture, "--run", path, "--method", method, "-o", "m.png")
        if row == "linformer" and method != "gradcam":
            assert code == 2
            assert "gives weights to mixtures of all tokens" in talk
        else:
            assert code == 0, talk
    code, _, talk = vitcli(picture, "--run", path, "--format", "html", "-o", "m.html")
    assert code == (2 if row == "linformer" else 0), talk
    words = ["visualize", str(path), "--what", "heads,distance,faithfulness", "--num-images", "4"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    refused = "distance      none: attention 'linformer' has no attention matrix" in result.stderr
    assert refused == (row == "linformer"), result.stderr
