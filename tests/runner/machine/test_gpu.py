"""What only a CUDA device can show. Run with: pytest -m gpu"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.core.specs import build
from tests.stopping import stop_after
from vitcli.core.randomness import begin_step
from vitcli.core.train.evaluate import compute_logits
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns_compiled_or_not(tiny, precision, compiled):
    changes = {"train.precision": precision, "train.compile": compiled, "train.epochs": 12}
    messages: list[str] = []
    outcome = start(
        load_experiment(str(tiny), changes),
        Request(device="cuda", output=Path("run")),
        on_message=messages.append,
    )
    losses = [record["test_loss"] for record in outcome.run.metrics()]
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.result["precision"] == precision
    assert not [text for text in messages if "failed" in text]


@pytest.mark.parametrize("policy", ["rand_augment", "trivial_augment"])
def test_augmentation_gives_the_pixels_of_the_cpu(pictures, policy):
    from vitcli.core.data.batches import train_batches
    from vitcli.core.spec import AugmentSpec, DataSpec
    from vitcli.runner.data.load import load_data

    data = load_data(DataSpec(name=f"imagefolder:{pictures}"))
    spec = AugmentSpec(crop_padding=1, flip="random", policy=policy, erasing=0.5, cutmix=1.0)
    options = {"mean": data.mean, "std": data.std, "num_classes": 2, "batch_size": 16}
    options |= {"seed": 0, "epoch": 0}
    here = train_batches(data.train, spec, **options)
    there = train_batches(data.train.to("cuda"), spec, **options)
    for one, other in zip(here, there, strict=True):
        assert_close(other["images"].cpu(), one["images"])
        assert_close(other["targets"].cpu(), one["targets"])


def test_a_captured_step_draws_what_it_draws_eagerly():
    device, ones = torch.device("cuda"), torch.ones(1000, device="cuda")
    eager = {}
    for step in (0, 1, 7):
        begin_step(device, 5, step)
        eager[step] = F.dropout(ones, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = F.dropout(ones, 0.5)
    for step, expected in eager.items():
        begin_step(device, 5, step)
        graph.replay()
        assert captured.equal(expected)
    assert not eager[0].equal(eager[1])


def test_the_model_computes_what_it_computes_on_a_cpu():
    model, images = build(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    expected = compute_logits(model, [{"images": images}])
    found = compute_logits(model.cuda(), [{"images": images.cuda()}])
    assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)


def test_a_stopped_run_goes_on_where_it_was(tiny, monkeypatch):
    """Bits are promised on a CPU; here the results must agree to rounding."""
    experiment = load_experiment(str(tiny), {"train.precision": "fp32", "train.compile": False})
    calm = start(experiment, Request(device="cuda", output=Path("calm")))
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(device="cuda", output=Path("stopped")))
    resumed = start(experiment, Request(device="cuda", output=Path("stopped"), resume=True))
    for one, other in zip(calm.run.metrics(), resumed.run.metrics(), strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
