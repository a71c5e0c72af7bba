"""What only a CUDA device can show. Run with: pytest -m gpu"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.core.trainings import epoch_batches, train_state
from tests.runner.train.conftest import stops_after, train
from vitcli.core.ops.backend import attention
from vitcli.core.randomness import seed_step
from vitcli.core.spec import OPTIMIZERS, AugmentSpec, DataSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.checkpoint import Checkpoint
from vitcli.runner.run.record import read_record
from vitcli.runner.train.build import compiled_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

COMPILED = [pytest.param(True, id="compiled"), pytest.param(False, id="plain")]


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(tiny, precision, compiled):
    changes = {"train.precision": precision, "train.compile": compiled, "train.epochs": 12}
    messages = [""]
    outcome = train(tiny, "run", changes, device="cuda", on_message=messages.append)
    assert outcome.result["precision"] == precision
    assert not [text for text in messages if "failed" in text]
    losses = [record["test_loss"] for record in read_record(outcome.folder).metrics]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("policy", ["rand_augment", "trivial_augment"])
def test_augmentation_gives_the_pixels_of_the_cpu(pictures, policy, compiled):
    data = load_data(DataSpec(name=f"imagefolder:{pictures}"))
    spec = AugmentSpec(crop_padding=1, flip="random", policy=policy, erasing=0.5, cutmix=1.0)
    options = {"mean": data.mean, "std": data.std}
    here = epoch_batches(data.train, spec, **options)
    make = {"prepare": compiled_batch()} if compiled else {}
    there = epoch_batches(data.train.to("cuda"), spec, **options, **make)
    for one, other in zip(here, there, strict=True):
        assert_close(other["images"].cpu(), one["images"])
        assert_close(other["targets"].cpu(), one["targets"])


def test_a_captured_step_draws_what_it_draws_eagerly():
    device, ones = torch.device("cuda"), torch.ones(1000, device="cuda")
    eager = {}
    for step in (0, 1, 7):
        seed_step(device, 5, step)
        eager[step] = F.dropout(ones, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = F.dropout(ones, 0.5)
    torch.cuda.synchronize()  # the capture has written its own seed, on a stream of its own
    for step, expected in eager.items():
        seed_step(device, 5, step)
        graph.replay()
        assert captured.equal(expected)
    assert not eager[0].equal(eager[1])


@pytest.mark.parametrize("has_mask", [False, True])
def test_gradients_of_attention_with_very_low_scores_are_finite(has_mask):
    device = pick_device("cuda")
    query, key, value = torch.randn(3, 1, 1, 64, 64, device=device).bfloat16()
    query[..., 0], key[..., 0] = 1.0, -960.0
    bias = torch.zeros(64, 64, device=device) if has_mask else None
    query.requires_grad_()
    attention(query, key, value, bias=bias).sum().backward()
    assert query.grad.isfinite().all()


def test_a_stopped_run_goes_on_where_it_was(tiny):
    """Bits are promised on a CPU; here the results must agree to rounding."""
    changes = {"train.precision": "fp32", "train.compile": False}
    calm = train(tiny, "calm", changes, device="cuda")
    with stops_after(7):
        train(tiny, "stopped", changes, device="cuda")
    resumed = train(tiny, "stopped", changes, device="cuda", resume=True)
    lines = [read_record(outcome.folder).metrics for outcome in (calm, resumed)]
    for one, other in zip(*lines, strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_graphs_take_the_steps_of_an_eager_training(name):
    """Learning rates and decays are rounded to fp32 in a graph."""
    changes = {"optim": {"name": name}, "train": {"ema_decay": 0.9}, "model": {"proj_drop": 0.1}}
    means, messages = [], []
    for graphs in (False, True):
        state = train_state(changes, "cuda", graphs=graphs, on_message=messages.append)
        for epoch in range(3):
            list(state.run_epoch(epoch))
            means.append(list(state.take_means().values()))
    assert messages == []
    assert_close(means[3:], means[:3], rtol=1e-2, atol=1e-4)


def test_graphs_go_on_with_the_steps_of_an_uninterrupted_training():
    """A resumed training warms up and captures anew, inside the epoch."""
    changes = {"model": {"proj_drop": 0.1}}
    whole, stopped, resumed = (train_state(changes, "cuda", graphs=True) for _ in range(3))
    for state, count in ((whole, 12), (stopped, 6)):
        steps = itertools.chain.from_iterable(map(state.run_epoch, range(3)))
        for _ in range(count):
            next(steps)
    resumed.load(6, Checkpoint(6, stopped.tensors(), {}).part, None)
    for epoch in (1, 2):
        list(resumed.run_epoch(epoch))
    assert_close(resumed.tensors(), whole.tensors(), rtol=1e-3, atol=1e-5)
