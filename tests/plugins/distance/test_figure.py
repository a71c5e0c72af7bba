"""The figure's numbers are those of the model's attention; some models have no such figure."""

import pytest

from tests.cli.commands import document
from tests.conftest import CLS
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.plugins.distance.statistics import attention_distance, uniform_distance
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.run.folder import RunDir


def test_numbers_are_those_of_the_models_attention(copy_of_run, here):
    run = copy_of_run(here / "run", CLS | {"model.reg_tokens": 1, "train.epochs": 1})
    (found,) = document("visualize", run, "--what", "distance", "--num-images", 24)["runs"]
    tested = load_trained_run(RunDir(run), num_images=24)
    images = tested.data.normalize(tested.data.test.pixels)
    layers = tested.attention_model.attention_weights(images)
    for row in found["distance"]["layers"]:
        by_head = attention_distance(layers[row["layer"] - 1], (2, 2), 4)
        assert row["distance"] == pytest.approx(by_head.mean().item(), rel=1e-5)
        assert row["distance_sd"] == pytest.approx(by_head.mean(1).std().item(), abs=1e-6)
        assert row["nearest_head"] == pytest.approx(by_head.mean(0).min().item(), rel=1e-5)
    assert found["distance"]["uniform_distance"] == uniform_distance((2, 2), 4)
    untrained = found["distance"]["claims"][-1]["untrained"]
    assert untrained["low"] < untrained["high"], "the seeds do not differ"


@pytest.mark.parametrize("row", ATTENTIONS)
def test_every_attention_and_a_grid_of_one_patch_have_the_figure_or_none(copy_of_run, here, row):
    changes = CLS | {"train.epochs": 0, "model.attention": row}
    for size in ({}, {"model.patch_size": 8}) if row == "softmax" else ({},):
        run = copy_of_run(here / f"run{len(size)}", changes | size)
        (found,) = document("visualize", run, "--what", "distance", "--num-images", 4)["runs"]
        assert ("distance" in found) == (not size and row != "linformer")
