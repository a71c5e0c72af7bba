"""Runs that the tests of commands share: each is trained once in a process, and copied."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import save_picture, vitcli
from tests.conftest import CLS, TINY, draw_pictures
from tests.fabricated import make_run, make_study_folder
from tests.plugin_rows import has

STUDY = (
    "question: does it print?\nhypothesis: it does & more\nbase: tiny.yaml\n"
    "train: {epochs: 2}\nseeds: [0, 1]\nvariants: {full: {}, no-norm: {model.norm: none}}\n"
)
SEARCH = """
question: which is best?
base: tiny.yaml
data: {val_split: 20}
train: {epochs: 1}
search:
  space:
    model.depth: [1, 2]
    model.embed_dim: [8, 16]
    model.num_heads: [1, 3]
  sampler: random
  trials: 3
"""


@pytest.fixture(autouse=True)
def _short_benchmarks(monkeypatch) -> None:
    if has("bench"):
        monkeypatch.setattr("vitcli.plugins.bench.training.MATMUL_SIDE", {"cpu": 64})


@pytest.fixture
def stage(here, tmp_path_factory) -> Path:
    """Change into a folder that is made once in a process, and that no test changes."""
    place = tmp_path_factory.getbasetemp() / "stage"
    is_new = not place.exists()
    place.mkdir(exist_ok=True)
    os.chdir(place)  # ``here`` leads back
    if is_new:
        build_stage()
    return place


def build_stage() -> None:
    draw_pictures(Path())
    Path("tiny.yaml").write_text(TINY % "pictures")
    Path("mine.yaml").write_text(STUDY)
    Path("searched.yaml").write_text(SEARCH)
    Path("broken.yaml").write_text("model: {dept: 4}\n")
    for name in ("x.png", "y.png"):
        save_picture(name, (8, 8))
    Path("link.png").symlink_to("x.png")
    Path("empty").mkdir()
    Path("note.png").write_text("words")
    options = ["tiny.yaml", "--device", "cpu", "-o"]
    cls = [word for field, value in CLS.items() for word in ("-s", f"{field}={value}")]
    assert vitcli("train", *options, "mapped", "--epochs", 1, *cls)[0] == 0
    if has("clip"):
        words = ["captions", "--epochs", 0, "-s", "task.name=clip", "-s", "data.augment.mixup=0"]
        assert vitcli("train", *options, *words)[0] == 0
    made: tuple[dict[str, Any], ...] = (
        {},
        {"accuracy": 0.25, "state": "interrupted"},
        {"changes": {"model.depth": 2}, "state": "diverged"},
        {"state": "failed"},
    )
    for seed, options_of_run in enumerate(made):
        run = make_run(seed, **options_of_run)
        os.utime(run.path / "status.json", (1e9 + seed, 1e9 + seed))
    make_study_folder({"full/seed0": "finished", "no-ffn/seed0": "diverged"})
    for name in ("status.json", "config.yaml"):
        for path in Path("runs/parts").rglob(name):
            os.utime(path, (1e9 + 9, 1e9 + 9))
