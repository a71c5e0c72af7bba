"""`vitcli visualize`: figures, numbers and one page, for models of every kind."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from tests.cli.commands import document, printed, said
from tests.conftest import TINY, draw_pictures
from tests.runner.train.conftest import train
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.run.folder import META, METRICS, STATUS, RunDir
from vitcli.runner.visualize.render import FIGURES, INTERACTIVE

CLS = {"model.pool": "cls", "model.pos_embed": "learned", "model.reg_tokens": 1}


def edit(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text)


def imported(run: Path) -> None:
    meta = json.loads((run / META).read_text())
    edit(run, META, json.dumps(meta | {"imported": "vit.pt"}))
    (run / METRICS).unlink()


def diverged(run: Path) -> None:
    edit(run, STATUS, json.dumps({"state": "diverged", "step": 0, "reason": "loss is NaN"}))
    shutil.rmtree(run / "checkpoints")


def documents(*words: object) -> list[dict[str, Any]]:
    return document("visualize", *words)["runs"]


@pytest.fixture
def run(here, tmp_path_factory) -> Path:
    """CLS and a register on 8x8 pictures of two classes: a grid of 2x2, 2 layers, 2 heads.

    One test picture lies in the wrong folder, so that there is a mistake. The run is trained once.
    """
    place = tmp_path_factory.getbasetemp() / "visualized"
    if not place.exists():
        test = draw_pictures(place) / "test"
        (test / "dark" / "0.png").rename(test / "bright" / "night.png")
        (place / "tiny.yaml").write_text(TINY % (place / "pictures"))
        train(place / "tiny.yaml", place / "one", CLS | {"train.epochs": 1})
    os.symlink(place / "one", "one")
    return Path("one")


def predictions(run: Path) -> dict[str, np.ndarray]:
    with np.load(run / "predictions.npz") as file:
        return dict(file)


@pytest.mark.seam
def test_every_figure_is_drawn_and_the_page_holds_them_all(run):
    printed("visualize", run, "--num-images", 6)
    folder = Path("figures/one")
    names = {*(f"{name}.png" for name in FIGURES), *(f"{name}.html" for name in INTERACTIVE)}
    assert {path.name for path in folder.iterdir()} == {*names, "numbers.json"}
    for name in FIGURES:
        with Image.open(folder / f"{name}.png") as figure:
            assert np.asarray(figure.convert("L")).std() > 5, f"{name} is blank"
    page = Path("figures/index.html").read_text()
    assert page.count('src="data:image/png') == len(FIGURES)
    assert ("default-src 'none'" in page, page.count("<script>")) == (True, len(INTERACTIVE))
    assert not re.search(r"https?://", page)


def test_numbers_are_the_models_own(run):
    (found,) = documents(run, "--what", "confusion", "--num-images", 24)
    saved = predictions(run)
    table = np.zeros((2, 2), int)
    np.add.at(table, (saved["labels"], saved["logits"].argmax(-1)), 1)
    assert found["confusion"]["confusion"] == table.tolist()


def test_mistakes_are_the_most_confident_wrong_predictions(run):
    (found,) = documents(run, "--what", "mistakes")
    saved = predictions(run)
    shares = torch.from_numpy(saved["logits"]).softmax(-1).numpy()
    wrong = np.flatnonzero(shares.argmax(1) != saved["labels"])
    surest = found["mistakes"]["surest"]
    assert (found["mistakes"]["num_mistakes"], len(wrong) > 0) == (len(wrong), True)
    assert {row["index"] for row in surest} <= set(wrong)
    expected = np.sort(shares[wrong].max(1))[::-1][: len(surest)]
    assert_allclose([row["probability"] for row in surest], expected, rtol=1e-5)
    tested = load_trained_run(RunDir(run), num_images=1)
    for row in surest:
        file = Path(tested.spec.data.name.partition(":")[2], row["file"])
        with Image.open(file) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        assert (pixels == tested.picture(row["index"])).all()


def test_several_runs_share_a_page_and_one_that_fails_leaves_the_others(run, copy_of_run):
    other = copy_of_run(Path("two"), {"train.epochs": 1})
    for manifest in other.rglob("manifest.json"):
        manifest.unlink()
    said(3, "visualize", run, other, "--what", "curves", "-o", "here")
    assert Path("here/one/curves.png").exists()
    assert ">one</h1>" in Path("here/index.html").read_text()
    said(4, "visualize", other, "-o", "gone")
    assert not Path("gone").exists()
    words = ("cifar10-pocket", "--what", "curves", "--data-dir", "nowhere")
    assert "cifar10 is not in nowhere" in said(4, "visualize", *words)


CURVELESS: dict[str, tuple[Callable[[Path], None], str]] = {
    "damaged": (lambda run: edit(run, METRICS, "{\n"), "metrics.jsonl: line 1 is not a record"),
    "lost": (lambda run: (run / METRICS).unlink(), "metrics.jsonl: it is missing"),
    "foreign": (
        lambda run: edit(run, METRICS, '{"step": 6, "epoch": 1, "her_loss": 1.0}\n'),
        "its metrics.jsonl has none of loss, accuracy",
    ),
    "imported": (imported, "its weights were imported, so its training is not known"),
    "diverged at once": (diverged, "it diverged before its first checkpoint (loss is NaN);"),
}


def test_the_page_of_several_runs_says_why_one_has_no_curve(run, copy_of_run):
    for kind, (change, _) in CURVELESS.items():
        change(copy_of_run(Path(kind), {"train.epochs": 1}))
    *readable, last = CURVELESS
    for kinds, code in ((readable, 0), ([last], 3)):
        said(code, "visualize", run, *kinds, "--what", "curves")
        page = Path("figures/index.html").read_text()
        assert [kind for kind in kinds if CURVELESS[kind][1] not in page] == []


def test_a_page_or_figure_of_somebody_else_is_not_replaced(run):
    folder = Path("figures/one")
    folder.mkdir(parents=True)
    for mine in (Path("figures/index.html"), folder / "numbers.json", folder / "curves.png"):
        mine.write_text("{}")
        said(2, "visualize", run, "--what", "curves")
        assert mine.read_text() == "{}"
        mine.unlink()
    (folder / "a.md").write_text("mine")
    said(0, "visualize", run, "--what", "curves")
    (folder / "curves.png").write_text("edited")
    assert "kept as curves.png.old1" in said(0, "visualize", run, "--what", "curves,confusion")
    assert (folder / "curves.png.old1").read_text() == "edited"
    assert (folder / "a.md").read_text() == "mine"
