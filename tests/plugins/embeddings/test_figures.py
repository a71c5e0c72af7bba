"""A model has the figures of what it has: a table of positions, filters, tokens."""

import re
from pathlib import Path

import pytest

from tests.cli.commands import document
from tests.runner.train.conftest import train

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


def test_features_are_described_by_the_variance_that_the_figure_shows(tiny, here):
    train(tiny, "run", {"train.epochs": 0})
    what = "embeddings,features"
    (found,) = document("visualize", "run", "--what", what, "--num-images", 6)["runs"]
    for name, count in (("embeddings", 2), ("features", 3)):
        shares = found[name]["explained_variance"]
        assert len(shares) == count
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1
    assert found["features"]["grid"] == [2, 2]
