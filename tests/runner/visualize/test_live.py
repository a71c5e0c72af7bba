"""The page with a model inside: what it holds, what it weighs and what it refuses."""

import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from tests.core.specs import build
from tests.explorer_page import parse
from vitcli.core.spec import VitSpec
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.weights import default_run
from vitcli.runner.visualize.explorer.live import LiveExplorer
from vitcli.runner.visualize.explorer.packing import UnknownLayerError, pack_model

SHIP = Path(__file__).parents[3] / "experiments" / "results" / "ship.jpg"
SHARES = (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(default_run(), "cpu")


@pytest.fixture(scope="module")
def written(predictor) -> bytes:
    explainer = Explainer(predictor, by_class=False, layers=[2], method="rollout")
    return LiveExplorer(explainer, all_layers=False).page(explainer.explain(str(SHIP)))


def test_the_page_holds_the_picture_its_logits_and_the_exact_weights(written, predictor):
    data = parse(written).data
    (scene,) = data["scenes"]
    pixels = np.frombuffer(base64.b64decode(scene["pixels"]), np.uint8).reshape(32, 32, 3)
    explanation = Explainer(predictor, by_class=False).explain(str(SHIP))
    assert (pixels == explanation.pixels.transpose(1, 2, 0)).all()
    with torch.no_grad():
        assert_allclose(scene["logits"], predictor.model(explanation.batch)[0], atol=1e-6)
    halves, floats = (base64.b64decode(text) for text in data["weights"])
    values = [np.frombuffer(halves, "<f2"), np.frombuffer(floats, "<f4")]
    kind, place, count = data["model"]["head"][0]["weight"]
    stored = values[kind][place : place + count].astype("f4")
    assert (stored == predictor.model.head.weight.detach().numpy().ravel()).all()
    assert data["opening"] == {"layer": 2, "head": None, "rollout": True, "query": None}
    assert data["about"]["layers"] == [*range(1, predictor.model.spec.depth + 1)]


def test_weights_that_half_precision_would_change_stay_in_single_precision():
    model = build().float()
    with torch.no_grad():
        model.head.weight.fill_(0.1)
        model.head.bias.fill_(0.5)
    packed, (halves, floats) = pack_model(model, *SHARES)
    (head,) = packed["head"]
    assert (head["weight"][0], head["bias"][0]) == (1, 0)
    assert np.frombuffer(floats, "<f4")[head["weight"][1]] == np.float32(0.1)
    assert np.frombuffer(halves, "<f2")[head["bias"][1]] == 0.5


FLAGS = [
    name
    for name, field in VitSpec.model_fields.items()
    if field.annotation is bool and name != "attn_clamp"  # no effect on scores below 10,000
]


class OwnNorm(nn.LayerNorm):
    """A layer of a kind that the script does not know, although its parent is one that it knows."""


def test_a_layer_of_another_class_is_refused_by_its_slot():
    model = build(norm="layer_norm")
    model.blocks[1].ffn.norm = OwnNorm(24)
    with pytest.raises(UnknownLayerError, match=r"^norm 'layer_norm'$"):
        pack_model(model, *SHARES)
    with pytest.raises(UnknownLayerError, match=r"^in_chans 2$"):
        pack_model(build(in_chans=2), (0.5, 0.5), (0.2, 0.2))


@pytest.mark.parametrize(
    ("slot", "row"),
    [("patch_embed", "shifted"), ("ffn", "depthwise"), ("attention", "performer")],
)
def test_rows_that_the_script_does_not_compute_are_refused_by_name(slot, row):
    with pytest.raises(UnknownLayerError, match=f"^{slot} '{row}'$"):
        pack_model(build(**{slot: row}).float(), *SHARES)


@pytest.mark.parametrize("field", FLAGS)
def test_a_model_with_another_setting_is_packed_in_another_way_or_refused(field):
    """Each flag changes what the model computes, so the page must know or refuse it."""
    default = VitSpec.model_fields[field].default
    packed = []
    for value in (default, not default):
        torch.manual_seed(0)
        try:
            packed.append(pack_model(build(**{field: value}).float(), *SHARES))
        except UnknownLayerError:
            assert value != default
            return
    assert packed[0] != packed[1]
