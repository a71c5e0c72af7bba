"""Models with stages are trained, continued, evaluated and timed like a ViT."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from tests.core.specs import REQUIRED, changed
from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.cli.main import app
from vitcli.core.models.build import build_model
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.errors import ConfigError, StoppedError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.scores import evaluate_run
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.train.start import Request, start

STAGED = ("swin", "coatnet", "pit")
MODEL = {"patch_size": 2, "embed_dim": 12, "num_heads": 3, "mlp_ratio": 1.0}
MODEL |= {"drop_path": 0.2, "proj_drop": 0.1}
TEXT = """
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random}}
optim: {lr: 1.0e-3}
train: {epochs: 3, batch_size: 8, limit_batches: 3, ema_decay: 0.5}
"""


@pytest.fixture(params=STAGED)
def experiment(request, pictures, here) -> Experiment:
    """Return an experiment on 8x8 pictures of two classes: 3 epochs of 3 steps."""
    Path("small.yaml").write_text(TEXT % pictures)
    model = {"family": request.param} | MODEL | REQUIRED[request.param]
    fields = {f"model.{name}": value for name, value in model.items()}
    fields |= {"train.grad_checkpointing": True}
    if request.param != "coatnet":  # batch norm wants whole batches
        fields["train.accumulate"] = 2
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    return load_experiment("./small.yaml", plain)


@pytest.mark.parametrize("looks", [3, 5])
def test_a_run_stopped_between_or_inside_epochs_ends_with_the_same_bits(
    experiment, monkeypatch, looks
):
    calm = start(experiment, Request(output=Path("calm"))).run
    with monkeypatch.context() as patch:
        stop_after(patch, looks)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    stopped = start(experiment, Request(output=Path("stopped"), resume=True)).run
    assert_same_run(calm, stopped)
    control = replace(experiment, spec=experiment.spec.replace(seed=1))
    with pytest.raises(AssertionError):
        assert_same_run(calm, start(control, Request(output=Path("other"))).run)


def test_a_staged_model_is_evaluated_and_used_like_any_run(experiment, pictures):
    done = start(experiment, Request(output=Path("done"))).run
    result = done.read("result.json")
    measured = evaluate_run("done")
    assert measured.parameters == result["parameters"]
    assert measured.scores.accuracy == result["test_accuracy"]
    assert result["forward_flops"] > 1000
    picture = next((pictures / "test" / "dark").iterdir())
    predictor = Predictor(done)
    assert sum(share for _, share in predictor.predict(str(picture)).top) == pytest.approx(1)
    with pytest.raises(ConfigError, match=r"attends .* name a Vision Transformer with --run"):
        Explainer(predictor)
    code = CliRunner().invoke(app, ["visualize", "done", "--num-images", "8"])
    assert code.exit_code == 0, code.output
    assert "none: a " in code.output
    assert list(Path("figures").rglob("embeddings.png"))


@pytest.mark.parametrize("family", STAGED)
def test_the_bench_times_a_staged_model(family):
    sets = ["-s", f"model.family={family}", "-s", "model.embed_dim=12", "-s", "model.patch_size=4"]
    for name, value in REQUIRED[family].items():
        sets += ["-s", f"model.{name}={list(value) if isinstance(value, tuple) else value}"]
    quick = ["--rounds", "1", "--seconds", "0", "--json"]
    done = CliRunner().invoke(app, ["bench", "train", "quickstart", *sets, *quick])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["parameters"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("family", STAGED)
def test_a_compiled_model_computes_the_same(family):
    spec = changed(family=family, **REQUIRED[family])
    model = build_model(spec).eval()
    compiled = torch.compile(model)
    images = torch.randn(2, 3, 16, 16)
    assert_close(compiled(images), model(images))
    gradients = [
        torch.autograd.grad(run(images).sum(), [*model.parameters()]) for run in (model, compiled)
    ]
    assert_close(*gradients)
