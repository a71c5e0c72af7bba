"""A model has the figures of what it has: a table of positions, filters, tokens."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.cli.commands import document
from tests.runner.train.conftest import train
from vitcli.plugins.embeddings.figures import embeddings_figure
from vitcli.runner.data.extras import EXTRAS
from vitcli.runner.evaluate.trained_run import load_trained_run

NET = "model: {family: convnet, widths: [8, 8]}"
MODELS = {
    "rope": ({"model.pos_embed": "rope2d"}, ["embeddings", "features", "filters"]),
    "relative": (
        {"model.pos_embed": "relative"},
        ["embeddings", "features", "filters", "pos-embed"],
    ),
    "net": ({"optim.name": "sgd"}, ["filters"]),
}
"""Name -> changed fields, and the figures that the model has."""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_figures_of_its_parts(tiny, here, name):
    changes, expected = MODELS[name]
    if name == "net":
        Path("net.yaml").write_text(re.sub(r"(?s)^model: .*?}", NET, tiny.read_text().lstrip()))
        tiny = Path("net.yaml").resolve()
    train(tiny, name, changes | {"train.epochs": 0})
    what = "pos-embed,filters,embeddings,features"
    (found,) = document("visualize", name, "--what", what, "--num-images", 4)["runs"]
    assert sorted(found["files"].keys() - {"numbers"}) == expected
    assert found["skipped"].keys() | expected == {*what.split(",")}
    for drawn in {"embeddings", "features"} & {*expected}:
        shares = found[drawn]["explained_variance"]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1


def test_the_strata_of_several_labels_are_no_classes_of_the_map(tiny, here):
    if "label_set" not in EXTRAS:
        pytest.skip("without the plugin targets, no picture has several labels")
    tested = load_trained_run(train(tiny, "run", {"train.epochs": 0}).folder, num_images=6)
    images = tested.data.test
    several = replace(images, extra={"label_set": torch.ones(len(images), 2)})
    seen = []
    for test in (images, several):
        (axes,) = (
            embeddings_figure(replace(tested, data=replace(tested.data, test=test)))
            .draw_axes()
            .axes
        )
        seen.append([text.get_text().strip() for text in axes.get_legend().get_texts()])
    assert (len(seen[0]), seen[1]) == (2, ["any (6)"])
