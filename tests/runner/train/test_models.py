"""Every attention and family: continued to the same bits, and used."""

from pathlib import Path

import pytest

from tests.core.specs import REQUIRED
from tests.runner.train.conftest import often, stops_after
from tests.same_run import assert_same_run
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.predict import Predictor, classifier_of_run
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.record import read_record
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

TEXT = """
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random}}
train: {epochs: 2, batch_size: 8, limit_batches: 3, ema_decay: 0.5}
"""
VIT = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "proj_drop": 0.1}
STAGED = {"patch_size": 2, "embed_dim": 12, "num_heads": 3, "mlp_ratio": 1.0, "drop_path": 0.2}
PARTS = {"train.accumulate": 2, "train.grad_checkpointing": True}
KINDS = {
    **{
        name: PARTS | {f"model.{k}": v for k, v in VIT.items()} | {"model.attention": name}
        for name in ATTENTIONS
        if name != "softmax"
    },
    **{
        name: {f"model.{k}": v for k, v in ({"family": name} | STAGED | REQUIRED[name]).items()}
        for name in ("swin", "coatnet", "pit")
    },
    "resnet18": {"model.family": "resnet18", "optim.name": "sgd", "train.limit_batches": 2},
    "convnet": {"model.family": "convnet", "model.widths": [8, 8], "optim.name": "sgd"},
}
KINDS["performer"] |= {"model.performer_redraw": 3, "optim.name": "muon"}
KINDS["swin"] |= PARTS  # batch norm wants whole batches


@pytest.mark.parametrize("kind", often(KINDS, "performer", "swin", "convnet"))
def test_a_run_stopped_inside_an_epoch_ends_with_the_same_bits(kind, pictures):
    """Optimiser, features, running statistics and batches of the chosen kinds differ."""
    Path("small.yaml").write_text(TEXT % pictures)
    changes = {k: list(v) if isinstance(v, tuple) else v for k, v in KINDS[kind].items()}
    experiment = load_experiment("./small.yaml", changes)
    calm = train(experiment, Request(output=Path("calm"))).folder
    with stops_after(2):
        train(experiment, Request(output=Path("stopped")))
    again = train(experiment, Request(output=Path("stopped"), resume=True)).folder
    assert_same_run(calm, again)
    measured, result = evaluate_run("calm"), read_record(calm).result
    assert measured.scores.accuracy == result["test_accuracy"]
    assert count_parameters(measured.trained.module) == result["parameters"]
    prediction = classifier_of_run(calm)(next((pictures / "test" / "dark").iterdir()))
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    if kind not in ATTENTIONS:
        with pytest.raises(ConfigError, match="Vision Transformer"):
            Explainer(Predictor(calm))
