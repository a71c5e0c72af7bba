"""The steps of a training: accumulated parts, clipped gradients, and fp16."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.core.specs import build, classify
from tests.core.trainings import training_on
from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.train.optim import build_optimizers, state_tensors


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    out = []
    for i in range(count):
        images = torch.randn(16, 6, generator=torch.Generator().manual_seed(i))
        out.append({"images": images, "targets": (images[:, 0] > 0).long()})
    return out


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 2))


def run(model, rows, *, optimizers=None, scaler=None, **fields):
    autocast = torch.float16 if scaler else None
    training = training_on(classify(model), rows, fields, autocast=autocast)
    training.optimizers = optimizers or training.optimizers
    training.scaler, training.autocast = scaler, None
    return list(training.run_epoch(0))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_accumulated_parts_equal_the_whole_batch():
    whole, parts = network().eval().double(), network().eval().double()
    rows = [{k: v.double() if k == "images" else v for k, v in b.items()} for b in batches(3)]
    one = run(whole, rows)
    four = run(parts, rows, **{"train.accumulate": 4, "train.batch_size": 4})
    assert_close(weights(whole), weights(parts))
    assert_close(one[-1].scalars, four[-1].scalars)


def test_the_gradient_is_clipped_after_its_norm_is_reported():
    model = network().eval()
    before = weights(model)
    optimizers = [torch.optim.SGD([{"params": list(model.parameters()), "peak_lr": 1.0}], lr=1.0)]
    steps = run(model, batches(1), optimizers=optimizers, **{"optim.max_grad_norm": 1e-3})
    assert steps[0].scalars["grad_norm"] > 1e-3
    assert_close((weights(model) - before).norm(), torch.tensor(1e-3), rtol=1e-3, atol=0)


def test_the_scale_and_the_skipped_steps_are_those_of_torch():
    """Two optimisers with fp16 act as one optimiser with torch's own loop."""
    overflows = [True, False, False, True, False, False, False, False]
    rows = batches(len(overflows))
    ours, theirs = network().eval(), network().eval()
    halves = [list(ours[0].parameters()), list(ours[3].parameters())]
    pair = [torch.optim.SGD([{"params": half, "peak_lr": 0.1}], lr=0.1) for half in halves]
    one = torch.optim.SGD(theirs.parameters(), lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", growth_interval=2) for _ in range(2)]
    for model in (ours, theirs):
        due = iter(overflows)
        model[3].bias.register_hook(lambda g, due=due: g * float("inf") if next(due) else g)
    for row in rows:
        run(ours, [row], optimizers=pair, scaler=scalers[0], **{"optim.max_grad_norm": None})
        one.zero_grad()
        scalers[1].scale(classify(theirs).losses(row)["loss"]).backward()
        scalers[1].step(one)
        scalers[1].update()
        assert scalers[0].state_dict() == scalers[1].state_dict()
        assert_close(weights(ours), weights(theirs))
    assert scalers[0].get_scale() == 2.0**16 / 4 * 8


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_step_that_fp16_skips_leaves_no_trace(name, monkeypatch):
    """torch's fused SGD would keep the momentum that it has not written."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    spec = OptimSpec(name=name, lr=0.01, muon_lr=0.01)
    image = torch.randn(2, 3, 16, 16)
    rows = [{"images": image, "targets": torch.tensor([0, 1])}] * 2
    ends = []
    for skips in (True, False):
        torch.manual_seed(1)
        model = build().float()
        optimizers = build_optimizers(model, spec)
        scaler = torch.amp.GradScaler("cpu")
        torch.use_deterministic_algorithms(True)  # uninitialised memory holds NaN
        try:
            if skips:
                hook = model.head.weight.register_hook(lambda grad: grad * float("inf"))
                run(model, rows[:1], optimizers=optimizers, scaler=scaler)
                hook.remove()
            run(model, rows[1:], optimizers=optimizers, scaler=scaler)
        finally:
            torch.use_deterministic_algorithms(False)
        ends.append((weights(model), state_tensors(optimizers)))
    assert_close(*ends)
