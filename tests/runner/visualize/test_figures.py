"""Every figure of a run is legible: nothing cut off, no overlaps, labels, n."""

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.figure_checks import faults
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start
from vitcli.runner.visualize.render import FIGURES
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet, load_run_on_test_set
from vitcli.runner.visualize.weight_figures import named_classes

LONG = (
    "northern_flying_squirrel_with_acorn",
    "\u00dcbergr\u00f6\u00dfentr\u00e4ger am Stra\u00dfenrand links",
    "\u8774\u8776 and $x_1$",
)
MANY = tuple(
    f"_{a}_{b}_of_the_northern_woods" for a, b in itertools.product("abcdefghij", repeat=2)
)
TINY = """
model: {patch_size: 4, embed_dim: 24, depth: %d, num_heads: %d, pool: %s, pos_embed: %s}
data: {name: "imagefolder:%s", resize: 16}
train: {epochs: %d, batch_size: 2}
"""
RUNS = {
    "one layer, long names": (LONG, (1, 1, "cls", "learned", 3)),
    "many classes": (MANY, (2, 8, "mean", "relative", 1)),
}
"""Name -> class names, and depth, heads, pooling, positions and epochs."""


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """Return a function that trains a run of ``RUNS`` once."""
    place = tmp_path_factory.mktemp("runs")

    @cache
    def run(name: str) -> RunOnTestSet:
        names, (depth, heads, pool, positions, epochs) = RUNS[name]
        folder = place / name
        draw_pictures(folder / "pictures", names)
        text = TINY % (depth, heads, pool, positions, folder / "pictures", epochs)
        (folder / "tiny.yaml").write_text(text)
        output = folder / "a_run_with_a_rather_long_name_of_its_own"
        start(load_experiment(str(folder / "tiny.yaml")), Request(output=output))
        return load_run_on_test_set(
            RunDir(output),
            num_images=40,
            device="cpu",
            data_dir=None,
            offline=True,
            on_message=print,
        )

    return run


def draw_pictures(place: Path, names: tuple[str, ...]) -> None:
    """Draw one training picture and two test pictures of each class."""
    rng = np.random.default_rng(0)
    for name, (split, count) in itertools.product(names, (("train", 1), ("test", 2))):
        folder = place / split / name
        folder.mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_or_covered_and_everything_has_a_label(tested, here, name, run):
    figure = FIGURES[name](tested(run))
    assert faults(figure.draw) == []


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_states_its_title_model_data_and_number_of_images(tested, here, name):
    figure = FIGURES[name](tested("many classes"))
    drawn = figure.draw()
    words = "".join(drawn.get_supxlabel().split())
    assert drawn.get_suptitle() == figure.title
    assert "a_run_with_a_rather_long_name_of_its_own,trainedonpictures" in words
    if name not in ("pos-embed", "filters"):  # of the weights
        assert re.search(r"n=\d+testimages", words)


def test_of_many_classes_the_most_frequent_get_a_name():
    labels = np.repeat(np.arange(40), 2)
    assert named_classes(labels).tolist() == list(range(15))
    assert named_classes(np.append(labels, 39)).tolist() == [*range(14), 39]
