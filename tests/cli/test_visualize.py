"""`vitcli visualize`: figures, numbers and one page, for models of every kind."""

import json
import re
import shlex
from base64 import b64encode
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

from tests.core.specs import rows
from vitcli.cli.main import app
from vitcli.core.inspect.statistics import attention_distance, uniform_distance
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start
from vitcli.runner.visualize.render import FIGURES
from vitcli.runner.visualize.run_on_test_set import load_run_on_test_set

CLS = {"model.pool": "cls", "model.pos_embed": "learned", "model.reg_tokens": 1}


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["visualize", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def make(tiny: Path, name: str, **changes) -> Path:
    experiment = load_experiment(str(tiny), {"train.epochs": 1} | changes)
    return start(experiment, Request(output=Path("runs") / name)).run.path


@pytest.fixture
def run(tiny, pictures, here) -> Path:
    """CLS and a register on 8x8 pictures of two classes: a grid of 2x2, 2 layers, 2 heads.

    One test picture lies in the wrong folder, so that there is a mistake.
    """
    (pictures / "test" / "dark" / "0.png").rename(pictures / "test" / "bright" / "night.png")
    return make(tiny, "one", **CLS)


def predictions(run: Path) -> dict[str, np.ndarray]:
    with np.load(run / "predictions.npz") as file:
        return dict(file)


def test_every_figure_is_drawn_and_the_page_holds_them_all(run):
    code, out, talk = vitcli(run, "--num-images", 6)
    assert code == 0, talk
    folder = Path("figures/one")
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.png" for name in FIGURES),
        "numbers.json",
        "explorer.html",
    }
    for name in FIGURES:
        with Image.open(folder / f"{name}.png") as figure:
            assert np.asarray(figure.convert("L")).std() > 5, f"{name} is blank"
    page = Path("figures/index.html").read_text()
    assert page.count('src="data:image/png') == len(FIGURES)
    assert "default-src 'none'" in page
    assert page.count("<script>") == 1
    assert page.count("data:image/png;base64,", page.index('class="explorer"')) == 2
    assert not re.search(r"https?://", page)
    assert "Layer 1 attends to neighbouring patches" in out
    assert out.rstrip().endswith("page  figures/index.html")


def test_numbers_are_the_models_own(run):
    code, out, _ = vitcli(run, "--what", "distance,confusion", "--num-images", 24, "--json")
    assert code == 0
    (found,) = json.loads(out)
    assert set(found["files"]) == {"confusion", "distance"}
    predictor = Predictor(RunDir(run), "cpu")
    tested = load_run_on_test_set(
        RunDir(run), num_images=24, device="cpu", data_dir=None, offline=True, on_message=print
    )
    images = tested.data.normalize(tested.data.test.pixels)
    layers = predictor.model.attention_weights(images)
    for row in found["distance"]["layers"]:
        by_head = attention_distance(layers[row["layer"] - 1], (2, 2), 4)
        assert row["distance"] == pytest.approx(by_head.mean().item(), rel=1e-5)
        assert row["distance_sd"] == pytest.approx(by_head.mean(1).std().item(), abs=1e-6)
        assert row["nearest_head"] == pytest.approx(by_head.mean(0).min().item(), rel=1e-5)
    assert found["distance"]["uniform_distance"] == uniform_distance((2, 2), 4)
    saved = predictions(run)
    table = np.zeros((2, 2), int)
    np.add.at(table, (saved["labels"], saved["logits"].argmax(-1)), 1)
    assert found["confusion"]["confusion"] == table.tolist()
    assert found["distance"]["claims"][-1]["verdict"] != "cannot be asked"


def test_mistakes_are_the_most_confident_wrong_predictions(run):
    _, out, _ = vitcli(run, "--what", "mistakes", "--json")
    (found,) = json.loads(out)
    saved = predictions(run)
    shares = torch.from_numpy(saved["logits"]).softmax(-1).numpy()
    wrong = np.flatnonzero(shares.argmax(1) != saved["labels"])
    assert len(wrong)
    surest = [row["index"] for row in found["mistakes"]["surest"]]
    assert found["mistakes"]["num_mistakes"] == len(wrong)
    assert set(surest) <= set(wrong)
    assert_allclose(
        [row["probability"] for row in found["mistakes"]["surest"]],
        np.sort(shares[wrong].max(1))[::-1][: len(surest)],
        rtol=1e-5,
    )
    tested = load_run_on_test_set(
        RunDir(run), num_images=1, device="cpu", data_dir=None, offline=True, on_message=print
    )
    for row in found["mistakes"]["surest"]:
        file = Path(tested.predictor.spec.data.name.partition(":")[2], row["file"])
        with Image.open(file) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        assert (pixels == tested.picture(row["index"])).all()


def test_the_recorded_command_names_the_figures(run):
    for words in (["--what", "curves,confusion"], ["--what", "mistakes"]):
        _, out, _ = vitcli(run, *words, "--num-images", 4, "--json")
        (found,) = json.loads(out)
        assert shlex.split(found["command"])[3:] == ["--num-images", "4", *words]


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_figures_come_in_the_format_asked_for_and_the_same_bytes_twice(run, form):
    assert vitcli(run, "--what", "curves,heads", "--format", form)[0] == 0
    first = {p.name: p.read_bytes() for p in Path("figures").rglob("*.*") if p.is_file()}
    assert vitcli(run, "--what", "curves,heads", "--format", form)[0] == 0
    assert {p.name: p.read_bytes() for p in Path("figures").rglob("*.*") if p.is_file()} == first
    assert f"heads.{form}" in first


def test_a_figure_that_a_model_lacks_is_reported_and_the_others_are_drawn(tiny, here):
    path = make(tiny, "rope", **{"model.pos_embed": "rope2d", "model.pool": "mean"})
    code, out, talk = vitcli(path, "--what", "pos-embed,distance", "--num-images", 4)
    assert code == 0
    assert "none: rope2d rotates q and k" in talk
    assert not Path("figures/rope/pos-embed.png").exists()
    assert "the model has no CLS" in out


@pytest.mark.parametrize("embed", rows("patch_embed"))
@pytest.mark.parametrize("positions", ["relative", "sincos2d"])
def test_every_patch_embedding_and_position_can_be_seen(tiny, here, embed, positions):
    path = make(tiny, "slots", **{"model.patch_embed": embed, "model.pos_embed": positions})
    code, _, talk = vitcli(path, "--what", "filters,pos-embed,embeddings", "--num-images", 6)
    assert code == 0
    assert "none:" not in talk


def test_a_network_without_attention_gets_what_it_has(pictures, here):
    path = here / "resnet.yaml"
    path.write_text(
        f'model: {{family: resnet18}}\ndata: {{name: "imagefolder:{pictures}"}}\n'
        "train: {epochs: 1, batch_size: 16, limit_batches: 1}\n"
    )
    run = start(load_experiment(str(path)), Request(output=here / "runs" / "net")).run.path
    code, _, talk = vitcli(run, "--what", "curves,confusion,heads,filters,embeddings")
    assert code == 0
    assert "a resnet18 has no attention" in talk
    assert sorted(p.stem for p in Path("figures/net").glob("*.png")) == [
        "confusion",
        "curves",
        "filters",
    ]


def test_several_runs_share_a_page_and_one_that_fails_leaves_the_others(run, tiny):
    other = make(tiny, "two")
    for manifest in other.rglob("manifest.json"):
        manifest.unlink()
    code, _, talk = vitcli(run, other, "--what", "curves", "-o", "here")
    assert code == 3
    assert "1 of 2 runs could not be drawn" in talk
    assert Path("here/one/curves.png").exists()
    assert ">one</h1>" in Path("here/index.html").read_text()
    assert vitcli(other, "-o", "gone")[0] == 4
    assert not Path("gone").exists()


def test_a_data_folder_is_that_of_the_runs_that_search_it(run):
    code, _, talk = vitcli(run, "--what", "curves", "--data-dir", "nowhere")
    assert code == 4
    assert "nowhere is not a folder" in talk
    code, _, talk = vitcli(run, "cifar10-pocket", "--what", "curves", "--data-dir", "nowhere")
    assert code == 3
    assert "cifar10 is not in nowhere" in talk
    assert "nowhere is not a folder" not in talk


def test_runs_of_the_same_name_keep_apart(tiny, here):
    paths = []
    for seed in (0, 1):
        experiment = load_experiment(str(tiny), {"train.epochs": 1, "seed": seed})
        output = here / f"place{seed}" / "a" / "b" / "c"
        paths.append(start(experiment, Request(output=output)).run.path)
    assert vitcli(*paths, paths[0], "--what", "filters")[0] == 0
    one, two = (Path(f"figures/{name}/filters.png").read_bytes() for name in ("a-b-c", "a-b-c-2"))
    assert one != two
    page = Path("figures/index.html").read_text()
    assert page.count("<h1>") == 2
    assert all(b64encode(content).decode() in page for content in (one, two))


def test_one_image_decides_nothing(run):
    code, out, _ = vitcli(run, "--what", "distance,faithfulness", "--num-images", 1, "--json")
    assert code == 0
    (found,) = json.loads(out)
    assert found["distance"]["claims"][1]["verdict"] in ("undecided", "cannot be asked")
    assert found["distance"]["layers"][0]["distance_ci95"] is None
    assert found["faithfulness"]["methods"][0]["gap_ci95"] is None


def test_the_check_with_random_weights_is_printed_and_the_same_each_time(run):
    words = (run, "--what", "faithfulness", "--num-images", 1)
    (first,) = json.loads(vitcli(*words, "--json")[1])
    found = first["faithfulness"]["randomisation"]
    assert found["parts"] == ["head", "block 2", "block 1", "embedding"]
    assert (found["n"], found["seeds"]) == (1, [1, 2, 3, 4]), "the run's own seed is 0"
    correlations = {row["method"]: row["correlation"] for row in found["methods"]}
    assert list(correlations) == ["last layer", "rollout", "grad-rollout", "gradcam"]
    assert correlations["rollout"][0][0] == pytest.approx(1), "no attention depends on the head"
    _, out, _ = vitcli(*words)
    (path,) = Path("figures").glob("*/numbers.json")
    assert json.loads(path.read_text())["faithfulness"] == first["faithfulness"]
    assert found["sentence"] in out
    page = Path("figures/index.html").read_text()
    assert found["sentence"] in unescape(page)


def test_an_untrained_run_is_not_distinguishable_from_untrained_models(tiny, here):
    path = make(tiny, "new", **CLS, **{"train.epochs": 0, "seed": 5})
    code, out, _ = vitcli(path, "--what", "distance")
    assert code == 0
    numbers = json.loads(Path("figures/new/numbers.json").read_text())["distance"]
    assert numbers["untrained_seeds"] == [*range(5, 13)]  # the run's own seed and the next ones
    same = "not distinguishable from an untrained model"
    printed = re.findall(rf"; {same}  ", out)
    assert len(printed) == sum(bool(claim["untrained"]) for claim in numbers["claims"]) > 1
    assert "8 random seeds, on 24 test images" in out
    page = Path("figures/index.html").read_text()
    assert page.count(f"; {same}</td>") == len(printed)
    assert "Not distinguishable from 8 untrained models on 24 of the test images: Layer" in page


def test_a_changed_model_is_distinguishable_and_the_same_each_time(tiny, here, monkeypatch):
    path = make(tiny, "one", **CLS)
    first, *_ = json.loads(vitcli(path, "--what", "distance", "--json")[1])
    second, *_ = json.loads(vitcli(path, "--what", "distance", "--json")[1])
    assert first == second
    load = Predictor.__init__

    def sharpen(self, *words):
        load(self, *words)
        for name, weight in self.model.named_parameters():
            if "qkv" in name:
                weight.data.mul_(30)

    monkeypatch.setattr(Predictor, "__init__", sharpen)
    third, *_ = json.loads(vitcli(path, "--what", "distance", "--json")[1])
    found, before = third["distance"]["claims"][-1], first["distance"]["claims"][-1]
    assert found["untrained"]["low"] == before["untrained"]["low"]  # those were not sharpened
    assert found["untrained"]["low"] < found["untrained"]["high"], "the seeds do not differ"
    assert found["untrained"]["number"] + found["untrained"]["error"] < found["untrained"]["low"]
    assert "not distinguishable" not in found["against_untrained"]


def test_one_patch_has_no_distance(tiny, here):
    path = make(tiny, "whole", **{"model.patch_size": 8})
    code, _, talk = vitcli(path, "--what", "distance,heads,faithfulness", "--num-images", 4)
    assert code == 0
    assert "none: the picture is one patch, so attention has no distance" in talk


def test_a_run_that_was_cut_short_is_measured_on_all_test_images(tiny, here, monkeypatch):
    monkeypatch.setattr("vitcli.core.data.batches.LIMITED", 5)
    path = make(tiny, "short", **{"train.limit_batches": 1})
    _, out, _ = vitcli(path, "--what", "confusion", "--json")
    assert json.loads(out)[0]["confusion"]["num_test"] == 24


def test_a_hostile_name_stays_text_on_the_page(tiny, here):
    path = make(tiny, "<img src=x onerror=alert(1)>")
    assert vitcli(path, "--what", "curves")[0] == 0
    page = Path("figures/index.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--what", "curve"], 2, "did you mean 'curves'?"),
        (["--num-images", "0"], 2, "num-images"),
        (["-o", "tiny.yaml"], 2, "not a folder"),
        (["--format", "gif"], 2, "format"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_read(run, words, code, message):
    got, out, talk = vitcli(run, *words)
    assert got == code
    assert message in talk
    assert out == ""
    assert not Path("figures").exists()


@pytest.mark.parametrize("what", ["", ","])
def test_an_empty_list_of_figures_is_refused(here, what):
    code, _, talk = vitcli("cifar10-pocket", "--what", what)
    assert (code, talk) == (2, "error: --what is empty; is a shell variable unset?\n")
