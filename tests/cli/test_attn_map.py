"""`vitcli attn-map`: pictures of any shape in, a figure or its numbers out."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

from tests.explorer_page import attention, parse
from vitcli.cli.main import app
from vitcli.cli.options import Fit
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.data.picture_files import SUFFIXES
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start

CLS = {"model.pool": "cls", "model.pos_embed": "learned"}


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["attn-map", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def run(copy_of_run, here) -> Path:
    """A model with a CLS token on 8x8 pictures of two classes: a grid of 2x2, 2 layers, 2 heads."""
    return copy_of_run(here / "runs" / "mapped", CLS | {"train.epochs": 1})


def save(name: str, size: tuple[int, int], mode: str = "RGB", **options) -> str:
    rng = np.random.default_rng(1)
    pixels = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    pixels.convert(mode).save(name, **options)
    return name


@pytest.mark.parametrize(
    ("name", "size", "mode"),
    [
        ("square.png", (8, 8), "RGB"),
        ("wide.jpg", (300, 90), "RGB"),
        ("tall.webp", (40, 200), "RGB"),
        ("grey.png", (33, 50), "L"),
        ("clear.png", (64, 48), "RGBA"),
    ],
)
def test_a_picture_of_any_shape_is_named_and_drawn(run, workshop, name, size, mode):
    code, out, talk = vitcli(save(name, size, mode), "--run", run)
    assert code == 0, talk
    stem = name.partition(".")[0]
    assert out.rstrip().endswith(f" %  {stem}-cls.png")
    assert out.startswith((f"{name}: bright", f"{name}: dark"))
    assert talk == f"run {run.name} (imagefolder:{workshop / 'pictures'})\n"
    with Image.open(f"{stem}-cls.png") as figure:
        assert min(figure.size) > 200


@pytest.mark.parametrize("size", [(300, 90), (400, 40), (100, 100), (60, 200)])
def test_a_figure_is_as_large_as_its_pictures_need(run, size):
    assert vitcli(save("x.jpg", size), "--run", run, "--method", "gradcam", "-o", "x.png")[0] == 0
    with Image.open("x.png") as figure:
        inked = np.asarray(figure.convert("L")) < 250
    for blank in (~inked.any(1), ~inked.any(0)):
        runs = "".join("x" if line else " " for line in blank).split()
        assert max(map(len, runs)) < 70, "a third of an inch at 200 dots an inch"


def test_a_folder_is_mapped_twice_and_its_figures_are_left_out(run):
    save("a.png", (9, 9))
    save("b.jpg", (9, 9))
    assert vitcli(".", "--run", run)[0] == 0
    Path("a-cls.png").rename("renamed.png")
    code, out, talk = vitcli(".", "--run", run)
    assert (code, len(out.splitlines())) == (0, 2)
    assert ".: skipped 2 figures of attn-map\n" in talk
    assert vitcli("renamed.png", "--run", run)[0] == 0, (
        "a figure that is named itself is a picture like any other"
    )
    for file in ("a.png", "b.jpg"):
        Path(file).unlink()
    code, _, talk = vitcli(".", "--run", run)
    assert code == 4
    assert "no picture in this folder, only 4 figures of attn-map (" in talk


def test_a_turned_photo_is_turned_back(run):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save("turned.jpg", (80, 20), exif=exif)
    assert vitcli(path, "--run", run, "--format", "json", "-o", "a.json")[0] == 0
    box = json.loads(Path("a.json").read_text())["box"]
    assert box == [30, 0, 20, 20], "the middle of a picture 20 wide and 80 high"


def test_the_numbers_are_the_models(run):
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", run, "--method", "head", "--format", "npz", "-o", "x.npz")[0] == 0
    assert vitcli(path, "--run", run, "--head", "2", "--format", "npz", "-o", "y.npz")[0] == 0
    model, spec = load_model(str(run)), json.loads((run / "meta.json").read_text())
    assert spec["experiment"] == "tiny"
    data = load_experiment(str(run / "config.yaml")).spec.data
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
def test_every_method_in_every_format_twice_the_same(run, method, form):
    path = save("x.png", (20, 12))
    words = (path, "--run", run, "--method", method, "--format", form, "-o")
    assert vitcli(*words, f"a.{form}")[0] == 0
    assert vitcli(*words, f"b.{form}")[0] == 0
    first = Path(f"a.{form}").read_bytes()
    assert first == Path(f"b.{form}").read_bytes()
    if form == "json":
        assert json.loads(first)["method"] == method


def test_raw_is_every_matrix_with_its_prefix(run):
    words = (save("x.png", (8, 8)), "--run", run, "--method", "raw", "-o")
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
def test_heads_may_be_averaged(run, method):
    words = (save("x.png", (8, 8)), "--run", run, "--method", method)
    for head, name in (("all", "all"), ("mean", "mean")):
        assert vitcli(*words, "--head", head, "-o", f"{name}.npz")[0] == 0
    with np.load("all.npz") as every, np.load("mean.npz") as mean:
        assert mean["maps"].shape[1] == 1
        assert_allclose(mean["maps"][:, 0], every["maps"].mean(1), rtol=1e-6)
    assert vitcli(*words, "--head", "mean", "-o", "mean.png")[0] == 0


def test_grad_cam_uses_the_last_layer_whose_patches_reach_cls(run):
    words = (save("x.png", (20, 12)), "--run", run, "--method", "gradcam", "-o", "x.json")
    found = {}
    for layer in ("", "1", "0"):
        option = ("--layer", layer) if layer else ()
        assert vitcli(*words, "--class", "dark", *option)[0] == 0
        found[layer] = json.loads(Path("x.json").read_text())
    assert found[""]["layers"] == [1], "of two; CLS does not attend to the output of the second"
    assert found[""]["about"] == "dark"
    assert found[""]["maps"] == found["1"]["maps"] != found["0"]["maps"]


def test_a_fit_is_used_by_both_commands(run):
    path = save("wide.png", (80, 20))
    words = (path, "--run", run, "--format", "json", "-o", "x.json", "--fit")
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
            app, ["predict", path, "--run", str(run), "--fit", fit, "--json"]
        )
        best = json.loads(result.stdout)[0]["top"][0]
        assert best["class"] == explanation["class"]
        assert best["probability"] == pytest.approx(explanation["probability"], rel=1e-4)
    assert found["crop"] != found["pad"] != found["stretch"] != found["crop"]
    assert vitcli(path, "--run", run, "--fit", "squeeze")[0] == 2


def explorer(*words: object) -> dict:
    """The data of the page that these words write."""
    code, _, talk = vitcli(*words, "--format", "html", "-o", "x.html")
    assert code == 0, talk
    return parse(Path("x.html").read_bytes()).data


def test_the_explorer_holds_the_numbers_of_the_maps(run):
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", run, "--method", "head", "-o", "x.npz")[0] == 0
    (scene,) = explorer(path, "--run", run)["scenes"]
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
def test_the_explorer_opens_with_the_requested_view(run, words, changes, layers):
    data = explorer(save("x.png", (20, 12)), "--run", run, *words)
    assert data["opening"] == OPENING | changes
    assert data["scenes"][0]["layers"] == layers
    assert data["scenes"][0]["box"] == pytest.approx([0.2, 0, 0.6, 1])


def test_every_picture_gets_an_explorer_of_its_own(run):
    paths = [save(name, (10, 10)) for name in ("a.png", "b.jpg")]
    code, out, _ = vitcli(*paths, "--run", run, "--format", "html")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["a-explorer.html", "b-explorer.html"]
    for path in paths:
        page = parse(Path(f"{Path(path).stem}-explorer.html").read_bytes())
        assert [scene["name"] for scene in page.data["scenes"]] == [path]


def test_a_file_name_that_is_a_script_is_a_name(run):
    name = "<img src=x onerror=alert(1)>\udcff.png"
    (scene,) = explorer(save(name, (8, 8)), "--run", run)["scenes"]
    assert scene["name"] == "<img src=x onerror=alert(1)>\\udcff.png"


def test_a_picture_is_never_replaced_by_its_map(run):
    path = save("x.png", (8, 8))
    before = Path(path).read_bytes()
    Path("link.png").symlink_to(path)
    for name in ("x.png", "./x.png", "link.png"):
        code, _, talk = vitcli(path, "--run", run, "-o", name)
        assert (code, "would overwrite the picture" in talk) == (2, True), talk
    assert Path(path).read_bytes() == before


def test_dash_is_standard_input_whatever_lies_here(run):
    Path("-").mkdir()
    code, _, talk = vitcli("-", "--run", run)
    assert code == 4
    assert "the file is empty" in talk
    assert vitcli(save("x.png", (8, 8)), "--run", run, "-o", "-")[0] == 2


def test_the_name_after_o_says_the_format(run):
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", run, "-o", "y.svg")[0] == 0
    assert Path("y.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("words", "method"),
    [([], "cls"), (["--class", "dark"], "grad-rollout"), (["--query", "0,1"], "cls")],
)
def test_the_default_method_fits_the_options(run, words, method):
    assert vitcli(save("x.png", (8, 8)), "--run", run, "-o", "x.json", *words)[0] == 0
    assert json.loads(Path("x.json").read_text())["method"] == method


def test_a_folder_is_all_its_pictures(run):
    Path("many").mkdir()
    for name in ("b.png", "a.jpg"):
        save(f"many/{name}", (16, 16))
    Path("many/notes.txt").write_text("no picture")
    code, out, _ = vitcli("many", "--run", run, "-o", "out", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["image"] for row in rows] == ["many/a.jpg", "many/b.png"]
    assert all(Path(row["file"]).is_file() for row in rows)
    assert {row["class"] for row in rows} <= {"dark", "bright"}


def test_pictures_of_one_name_do_not_overwrite_each_other(run):
    for folder in ("a", "b.c"):
        Path(folder).mkdir()
        save(f"{folder}/x.png", (10, 10))
    save("a/x.jpg", (10, 10))
    assert vitcli("a", "b.c", "--run", run, "-o", "b.c")[0] == 0
    found = sorted(path.name for path in Path("b.c").glob("*-cls.png"))
    assert found == ["x-2-cls.png", "x-3-cls.png", "x-cls.png"]


def test_what_is_no_picture_is_said_and_the_rest_is_done(run):
    Path("note.png").write_text("words")
    good = save("good.png", (10, 10))
    code, out, talk = vitcli("note.png", good, "missing.png", "--run", run)
    assert code == 3
    assert "good-cls.png" in out
    assert "error: note.png: text, not a picture" in talk
    assert "error: missing.png: cannot be opened" in talk
    assert talk.rstrip().endswith("error: 2 of 3 images could not be read")
    assert vitcli("note.png", "--run", run)[0] == 4


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + b"\0\0\0\0IDAT" + b"\0" * 4


def half_a_jpeg() -> bytes:
    content = Path(save("whole.jpg", (64, 64))).read_bytes()
    return content[: len(content) // 2]


BAD = {
    "cut.jpg": (half_a_jpeg, "cut.jpg: the picture is damaged or cut short; get a fresh copy"),
    "huge.png": (
        lambda: png_header(20_000, 20_000),
        "huge.png: over 100 megapixels; save a smaller copy",
    ),
    "long.png": (
        lambda: png_header(30_000, 30),
        "long.png: 30000x30 has an aspect ratio over 20:1",
    ),
    "photo.heic": (
        lambda: b"\0\0\0\x18ftypheic" + b"\0" * 99,
        "photo.heic: a HEIC picture; PNG, JPEG, WebP, BMP and GIF can be read; convert it: magick",
    ),
    "empty.png": (lambda: b"", "empty.png: the file is empty"),
    "tool.png": (lambda: b"\x7fELF" + bytes(99), "tool.png: a file, not a picture"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_one_line_and_the_others_are_written(run, name):
    make, told = BAD[name]
    Path(name).write_bytes(make())
    code, out, talk = vitcli(name, "--run", run, "-o", "out")
    assert (code, out) == (4, "")
    _, first = talk.splitlines()
    assert first.startswith(f"error: {told}")
    assert not Path("out").exists()
    code, out, talk = vitcli(save("a.png", (9, 9)), name, save("b.jpg", (9, 9)), "--run", run)
    assert code == 3
    assert len(out.splitlines()) == 2
    assert talk.count("error: ") == 2
    for written in ("a-cls.png", "b-cls.png"):
        with Image.open(written) as figure:
            figure.load()


def test_a_folder_as_one_of_several_that_holds_no_picture_stops_at_once(run):
    Path("empty").mkdir()
    code, out, talk = vitcli(save("a.png", (9, 9)), "empty", "--run", run)
    assert (code, out) == (4, "")
    assert "error: empty: no picture in this folder" in talk
    assert not Path("a-cls.png").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--layer", "3"], 2, "--layer: layer 3 is out of range: the model has layers 1 to 2"),
        (["--layer", "x"], 2, "--layer takes numbers such as 1"),
        (["--head", "3"], 2, "--head 3 is out of range: the model has heads 1 to 2"),
        (["--class", "brigth"], 2, "--class brigth: no such class; did you mean 'bright'?"),
        (["--class", "zigzag"], 2, "no such class (classes: bright, dark)"),
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
        (["-o", "x.gif"], 2, "-o x.gif: the name does not fit any format; use .png, .svg"),
        (["-o", "y.svg", "--format", "png"], 2, "-o y.svg: the name does not fit png; use .png"),
        (["--query", "2,0"], 2, "--query takes x and y between 0 and 1"),
        (["--query", "left"], 2, "--query takes x and y between 0 and 1"),
        (["--run", "nothing"], 4, "nothing"),
        (["empty"], 4, "empty: no picture in this folder"),
        (["y.png", "-o", "one.png"], 2, "-o one.png: 2 pictures need a folder"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(run, words, code, told):
    Path("empty").mkdir()
    files = [save("x.png", (8, 8)), save("y.png", (8, 8))][: 1 if words != ["empty"] else 0]
    named = [] if "--run" in words else ["--run", run]
    found, out, talk = vitcli(*files, *words, *named)
    assert (found, out) == (code, "")
    assert told in talk
    assert len([line for line in talk.splitlines() if line.startswith("error")]) == 1


def test_without_cls_the_method_that_fits_is_taken_or_named(tiny, here):
    experiment = load_experiment(str(tiny), {"train.epochs": 1})
    run = start(experiment, Request(output=here / "runs" / "pooled")).run.path
    path = save("x.png", (8, 8))
    assert vitcli(path, "--run", run, "--format", "json", "-o", "x.json")[0] == 0
    assert json.loads(Path("x.json").read_text())["method"] == "rollout"
    code, _, talk = vitcli(path, "--run", run, "--method", "cls")
    assert code == 2
    assert "no CLS token" in talk
    assert vitcli(path, "--run", run, "--method", "cls", "--query", "0,1")[0] == 0


def test_suffixes_are_those_of_pictures_that_can_be_read(run):
    for suffix in SUFFIXES:
        assert vitcli(save(f"x{suffix}", (9, 9)), "--run", run, "-o", "out")[0] == 0


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
