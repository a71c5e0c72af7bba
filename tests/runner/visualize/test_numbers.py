"""The lens from numbers made by hand; the default map; legible figures."""

import itertools
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.core.specs import build
from tests.figure_checks import faults
from tests.runner.data.conftest import add
from vitcli.core.inspect.maps import default_method
from vitcli.runner.evaluate.trained_run import TrainedRun, load_trained_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train
from vitcli.runner.visualize import training_figures
from vitcli.runner.visualize.lens_figure import read_lens
from vitcli.runner.visualize.render import FIGURES


def test_the_default_map_of_a_model_without_cls_is_the_one_that_the_check_chose():
    path = Path(__file__).parents[3] / "experiments" / "results" / "visualize-cifar10-pocket.json"
    found = json.loads(path.read_text())["faithfulness"]["randomisation"]
    assert default_method(build(pool="mean")) == found["choice"]


def test_a_curve_of_an_accuracy_ends_at_100_percent():
    splits = {"train": (), "val": ((0, 1.0),), "test": ()}
    panel = training_figures._Panel(label="", title="accuracy, %", scale=100, splits=splits)
    axes = training_figures._draw_curves([panel]).axes[0]
    low, high = axes.get_ylim()
    assert low < 100 <= high
    assert max(tick for tick in axes.get_yticks() if tick <= high) == 100


def test_a_lens_counts_right_classes_and_those_of_the_last_layer():
    logits = torch.zeros(4, 3, 2)
    said = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 0], [1, 1, 1]])
    logits.scatter_(2, said[..., None], 1.0)
    lens = read_lens(logits, torch.tensor([1, 1, 1, 0]))
    assert [round(mean) for mean, _ in lens.accuracy] == [25, 50, 50]
    assert min(error for _, error in lens.accuracy) > 30
    certain = read_lens(logits[1:2].expand(16, -1, -1), torch.ones(16, dtype=torch.long))
    assert certain.accuracy[0] == pytest.approx((100, 9.68), abs=0.01), "as that of eval"
    assert lens.agreement == [75, 50, 100]
    assert lens.settled == 0
    assert replace(lens, agreement=[100, 20, 60, 100]).settled == 2
    assert lens.num_images == 4


LONG = (
    "northern_flying_squirrel_with_acorn",
    "\u00dcbergr\u00f6\u00dfentr\u00e4ger am Stra\u00dfenrand links",
    "\u8774\u8776 and $x_1$",
)
MANY = tuple(f"_{i // 10}_{i % 10}_of_the_northern_woods" for i in range(100))
TINY = """
model: {patch_size: 4, embed_dim: 24, depth: %d, num_heads: %d, pool: %s, pos_embed: %s}
data: {name: "imagefolder:%s", resize: 16}
train: {epochs: %d, batch_size: 2}
"""
RUNS = {
    "long names": (LONG, (2, 1, "cls", "learned", 3)),
    "many classes": (MANY, (1, 8, "mean", "relative", 1)),
}
"""Name -> class names, and depth, heads, pooling, positions and epochs."""


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """Return a function that trains a run of ``RUNS`` once."""
    place = tmp_path_factory.mktemp("runs")

    @cache
    def run(name: str) -> TrainedRun:
        names, (depth, heads, pool, positions, epochs) = RUNS[name]
        folder = place / name
        generator = np.random.default_rng(0)
        for each, (split, count) in itertools.product(names, (("train", 1), ("test", 2))):
            add(folder / "pictures" / split / each, count, generator, (16, 16))
        text = TINY % (depth, heads, pool, positions, folder / "pictures", epochs)
        (folder / "tiny.yaml").write_text(text)
        output = folder / "a_run_with_a_rather_long_name_of_its_own"
        train(load_experiment(str(folder / "tiny.yaml")), Request(output=output))
        options: dict[str, Any] = {"device": "cpu", "data_dir": None, "offline": True}
        return load_trained_run(RunDir(output), num_images=40, on_message=print, **options)

    return run


OF_NO_CLASS_OR_HEAD = ("curves", "faithfulness", "features", "filters")
DRAWN = [(name, "long names") for name in FIGURES]
DRAWN += [(name, "many classes") for name in FIGURES if name not in OF_NO_CLASS_OR_HEAD]


@pytest.mark.parametrize(("name", "run"), DRAWN)
def test_a_figure_is_legible_and_states_its_title_model_data_and_images(tested, here, name, run):
    figure = FIGURES[name].make(tested(run))
    draw = cache(figure.draw)
    assert faults(draw) == []
    drawn = draw()
    words = "".join(drawn.get_supxlabel().split())
    assert drawn.get_suptitle().split() == figure.title.split(), "a long title takes two lines"
    assert "a_run_with_a_rather_long_name_of_its_own,trainedonpictures" in words
    if name not in ("pos-embed", "filters"):  # of the weights
        assert re.search(r"n=\d+testimage", words)
