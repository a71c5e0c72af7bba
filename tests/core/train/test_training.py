"""Steps: accumulated parts, clipping, fp16, rates of layers, frozen parameters, class weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.specs import build, classify
from tests.core.trainings import data_set, new_task, of_parameters, training_on
from vitcli.core.data.batches import Batch, balanced_order
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.image_model import count_layers
from vitcli.core.objectives.objective import Task
from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.train.optim import build_optimizers, state_tensors
from vitcli.core.train.training import Training


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    images = torch.randn(count, 16, 6, generator=torch.Generator().manual_seed(0))
    return [{"images": each, "targets": (each[:, 0] > 0).long()} for each in images]


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


def test_layers_follow_the_blocks_also_through_stages():
    names = ["embed", "blocks.0.a", "blocks.0.b", "blocks.1.a", "norm", "head"]
    assert count_layers(names) == [0, 1, 1, 2, 3, 3]
    staged = ["embed", "stages.0.blocks.0.a", "stages.1.down.a", "stages.1.blocks.0.a", "head"]
    assert count_layers(staged) == [0, 1, 2, 2, 3]
    assert count_layers(["conv", "head"]) == [0, 0]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_rate_falls_by_the_factor_from_layer_to_layer(name):
    task = new_task({"optim": {"name": name, "layer_decay": 0.5, "lr": 1.0, "muon_lr": 8.0}})
    optimizers = build_optimizers(task.module, task.spec.optim)
    rates = of_parameters(task.module, optimizers, "peak_lr")
    names = [name for name, _ in task.module.named_parameters()]
    depth = dict(zip(names, count_layers(names), strict=True))
    for parameter, rate in rates.items():
        is_hidden = name == "muon" and parameter.endswith(".weight") and "blocks" in parameter
        peak = 8.0 if is_hidden and task.module.get_parameter(parameter).ndim == 2 else 1.0
        assert rate == peak * 0.5 ** (3 - depth[parameter])
    assert rates.keys() == {*names}


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        ("backbone", {"head"}),
        (1, {"blocks.1", "norm", "head"}),
        (0, {"blocks.0", "blocks.1", "norm", "head"}),
        (r"blocks\.\d", {"embed", "norm", "head"}),
    ],
)
def test_a_step_changes_what_is_not_frozen(freeze, trained):
    task = new_task({"train": {"freeze": freeze}})
    made = Training(task.spec, task, data_set())
    assert made.parameters == count_parameters(new_task({}).module), "frozen or not"
    before = {n: p.detach().clone() for n, p in made.module.named_parameters()}
    list(made.run_epoch(0))
    changed = {n for n, p in made.module.named_parameters() if not p.equal(before[n])}
    places = [n if "embed" not in n and "token" not in n else f"embed.{n}" for n in before]
    wanted = {n for n, p in zip(before, places, strict=True) if p.startswith(tuple(trained))}
    assert changed == wanted


@pytest.mark.parametrize(
    ("freeze", "optimizer", "field"),
    [
        *((freeze, "adamw", "train.freeze") for freeze in ("nothing has this name", ".", 9)),
        ("backbone", "muon", "optim.name"),  # no matrix is left for Muon
    ],
)
def test_to_freeze_nothing_or_everything_is_refused(freeze, optimizer, field):
    task = new_task({"optim": {"name": optimizer}, "train": {"freeze": freeze}})
    with pytest.raises(ValueError, match=f"^{field}: "):
        Training(task.spec, task, data_set())


def test_a_balanced_epoch_draws_each_class_equally_often():
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    order = balanced_order(labels, seed=0, epoch=0)
    assert order.equal(balanced_order(labels, seed=0, epoch=0))
    assert not order.equal(balanced_order(labels, seed=0, epoch=1))
    drawn = labels[order].bincount() / len(labels)
    assert_close(drawn, torch.full((3,), 1 / 3), atol=0.06, rtol=0)  # four standard deviations


def test_an_image_that_is_drawn_twice_is_augmented_twice():
    augment = {"augment": {"crop_padding": 4}}
    plain = new_task(augment).rows(data_set(), 0)
    sampled = new_task(augment | {"train": {"class_balance": "sampling"}}).rows(data_set(), 0)
    assert len(sampled["index"].unique()) < len(plain["index"].unique()) == len(plain["index"])
    assert sampled["crop"].equal(plain["crop"])


def weighted(**augment: float) -> tuple[Task, Batch, Tensor]:
    images = data_set()
    images.train.labels[:40] = 0
    task = new_task({"train": {"class_balance": "weights"}, "augment": augment})
    counts = images.train.labels.bincount(minlength=5).float()
    return task, next(task.batches(images, 0)), len(images.train) / (5 * counts)


def test_weights_make_every_class_count_the_same_and_a_mixed_image_has_those_of_both():
    task, batch, table = weighted()
    assert_close(batch["weights"], table[batch["targets"]])
    logits = task.module(batch["images"])
    expected = F.cross_entropy(logits, batch["targets"], table, reduction="sum") / len(logits)
    assert_close(task.losses(batch)["loss"], expected)
    _, batch, table = weighted(mixup=1.0)
    assert_close(batch["weights"], (batch["targets"] * table).sum(-1))
