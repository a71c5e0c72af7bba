"""Optimisers, schedules, the average of the weights, and tensors on their way to the host."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.testing import assert_close

from tests.core.trainings import of_parameters
from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.train import optim
from vitcli.core.train.ema import Ema
from vitcli.core.train.schedule import SCHEDULES, lr_factor


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.ones(1, 1, 4))
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay_all", [True, False])
def test_weight_decay_covers_matrices_or_all_parameters(name, decay_all):
    model = Tiny()
    optimizers = optim.build_optimizers(model, OptimSpec(name=name, decay_all=decay_all))
    held = [p for o in optimizers for g in o.param_groups for p in g["params"]]
    assert len(held) == len([*model.parameters()]), "each is in one group"
    decays = of_parameters(model, optimizers, "weight_decay")
    wanted = {*dict(model.named_parameters())} if decay_all else {"blocks.0.weight", "head.weight"}
    assert {name for name, decay in decays.items() if decay > 0} == wanted
    own_table = "blocks.0.attn.inner.position.table", nn.Parameter(torch.zeros(2, 9))
    assert not optim.is_decayed(*own_table)
    assert not optim.is_hidden_matrix(*own_table), "Muon would make its rows orthogonal"


def test_ema_equals_its_closed_form_copies_counters_and_averages_running_statistics():
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    ema = Ema(model, decay=0.5)
    expected = 0.0
    for t in range(1, 8):
        nn.init.constant_(model.weight, float(t))
        ema.update(ema.share(t))
        decay = min(0.5, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * t
    assert ema.model.weight.item() == pytest.approx(expected)
    assert not ema.model.weight.requires_grad
    model.register_buffer("queue", torch.zeros(()))
    model.not_averaged = ("queue",)
    ema = Ema(model, decay=0.9)
    model.queue.fill_(1)
    ema.update(ema.share(1))
    assert ema.model.queue == 1, "copied, also from the outermost module"
    model = nn.BatchNorm1d(2)
    ema = Ema(model, decay=0.9)
    model(torch.randn(16, 2) + 5)
    ema.update(ema.share(1))
    assert ema.model.num_batches_tracked == 1
    assert_close(ema.model.running_mean, model.running_mean * (1 - 2 / 11))
    model.running_var[0] = math.inf  # as in a mask
    ema = Ema(model, decay=0.9)
    model.running_mean = model.running_mean + 1  # replaced, as own code may
    ema.update(ema.share(1))
    assert_close(ema.model.running_mean, model.running_mean - 1 + 9 / 11)
    assert ema.model.running_var[0] == math.inf


def test_the_state_of_other_parameters_is_refused():
    """This happens after a release that moves parameters to another optimiser."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizers = optim.build_optimizers(model, OptimSpec())
    model(torch.randn(2, 4)).sum().backward()
    optimizers[0].step()
    tensors = dict(optim.state_tensors(optimizers))
    optim.load_state_tensors(optimizers, tensors)
    swapped = {name: tensors[name.replace("0.0.", "0.1.", 1)] for name in tensors if ".0." in name}
    with pytest.raises(ValueError, match="state 0 belongs to another parameter"):
        optim.load_state_tensors(optimizers, tensors | swapped)

    class Own(torch.optim.SGD):
        """Its state has any shape, such as one number a tensor."""

    own = Own(model.parameters(), lr=0.1)
    optim.load_state_tensors([own], {"0.0.exp_avg_sq": torch.tensor(0.5)})
    assert own.state[next(model.parameters())]["exp_avg_sq"] == 0.5


STATES = [
    {"momentum_buffer": torch.full((2, 3), 0.1)},
    {"step": 3, "rate": 0.1, "best": math.inf, "is_first": False},
    {"step": torch.tensor(3), "sum": torch.tensor(0.1).double(), "row": torch.ones(3).bfloat16()},
]


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_an_own_optimizer_is_restored(state):
    weight = Parameter(torch.zeros(2, 3))
    first, second = (torch.optim.SGD([weight], lr=0.1, momentum=0.9) for _ in range(2))
    first.state[weight] = state
    stored = optim.state_tensors([torch.optim.SGD([weight]), first])
    optim.load_state_tensors([torch.optim.SGD([weight]), second], stored)
    assert repr(second.state[weight]) == repr(state)


OTHERS = [3, {"sides": [torch.ones(2)]}, {"kind": "x"}, {"a:int": torch.ones(1)}, {7: 1}]


@pytest.mark.parametrize("state", OTHERS)
@pytest.mark.parametrize("is_named", [False, True])
def test_other_state_is_refused(state, is_named):
    weight = Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state["all" if is_named else weight] = state
    with pytest.raises(TypeError, match="keep"):
        optim.state_tensors([optimizer])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_parameter_that_is_a_part_of_other_memory_is_trained_alone(name):
    """Fused optimisers of a CPU would change what lies between its rows instead."""
    weights, whole = torch.randn(2, 2), torch.randn(2, 3)
    whole[:, :2] = weights
    rest, models = whole[:, 2].clone(), [nn.Linear(2, 2, bias=False) for _ in range(2)]
    for model, weight in zip(models, (weights, whole[:, :2]), strict=True):
        model.weight = Parameter(weight)
        (optimizer,) = optim.build_optimizers(model, OptimSpec(name=name))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.eye(2)).square().sum().backward()
            optimizer.step()
    assert_close(models[0].weight, models[1].weight)
    assert whole[:, 2].equal(rest)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_state_of_a_channels_last_filter_has_its_layout(name):
    """Fused optimisers refuse tensors in another layout than that of their parameter."""
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizers = optim.build_optimizers(model, OptimSpec(name=name))
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizers[0].step()
    stored = {k: v.clone().contiguous() for k, v in optim.state_tensors(optimizers).items()}
    optim.load_state_tensors(optimizers, stored)
    optimizers[0].step()
    filters = [v for v in optimizers[0].state[model.weight].values() if v.ndim == 4]
    assert filters
    assert all(v.stride() == model.weight.stride() for v in filters)


SHAPES = [(24, 8), (8, 24), (24, 8), (8, 8)]


def trained(cls, steps: int, **options) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrices = [Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = cls(matrices, lr=0.1, weight_decay=0.1, momentum=0.9, **options)
    for _ in range(steps):
        for matrix in matrices[: len(SHAPES) - 1]:  # the last one has no gradient
            matrix.grad = torch.randn(matrix.shape, generator=generator)
        optimizer.step()
    return [matrix.detach() for matrix in matrices]


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_equal_those_of_torch(nesterov):
    ours, theirs = (trained(cls, 3, nesterov=nesterov) for cls in (optim.Muon, torch.optim.Muon))
    start = trained(optim.Muon, 0)
    for before, one, other in zip(start[:-1], ours, theirs, strict=False):
        moved = (other - before).norm()
        assert moved > 0.1
        assert (one - other).norm() < 0.02 * moved
    assert torch.equal(ours[-1], start[-1])


def test_filters_are_matrices_of_their_outputs_with_a_rate_of_their_own():
    class Hybrid(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.each = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
            self.blocks = nn.ModuleList([nn.Linear(4, 4)])

    model = Hybrid().to(memory_format=torch.channels_last)
    spec = OptimSpec(name="muon", lr=0.1, muon_lr=0.2, muon_filter_lr=0.4)
    muon, _ = optimizers = optim.build_optimizers(model, spec)
    rates = of_parameters(model, optimizers, "peak_lr")
    assert (rates["conv.weight"], rates["each.weight"], rates["blocks.0.weight"]) == (0.4, 0.1, 0.2)
    matrix = Parameter(model.conv.weight.detach().flatten(1).clone())
    gradient = torch.randn(8, 27)
    model.conv.weight.grad, matrix.grad = gradient.view(8, 3, 3, 3), gradient
    muon.step()
    optim.Muon([matrix], lr=0.4, weight_decay=spec.weight_decay, nesterov=True).step()
    assert_close(model.conv.weight.flatten(1), matrix)
    with pytest.raises(ValueError, match="muon_filter_lr: the model trains no convolution"):
        optim.build_optimizers(Tiny(), spec)


def test_infinite_gradients_leave_matrices_and_momentum_unchanged():
    """``found_inf`` is how a GradScaler tells an optimiser."""
    matrices = [Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = optim.Muon(matrices, lr=0.1, weight_decay=0.1)

    def step(found_inf: float) -> list[torch.Tensor]:
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
            matrix.grad[0, 0] += found_inf * float("inf") if found_inf else 0.0
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        return [t.clone() for m in matrices for t in (m, optimizer.state[m]["momentum_buffer"])]

    first, skipped, second = step(0.0), step(1.0), step(0.0)
    assert all(map(torch.equal, first, skipped))
    assert not any(map(torch.equal, skipped, second))


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_rises_in_equal_steps_to_the_peak(name):
    rates = [lr_factor(s, schedule=name, warmup_steps=4, num_steps=20) for s in range(5)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_cosine_falls_by_its_formula():
    rate = lr_factor(25, schedule="cosine", warmup_steps=0, num_steps=100)
    assert rate == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize(("name", "end"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0)])
def test_the_schedule_ends_at_min_lr_ratio(name, end):
    options = {"schedule": name, "warmup_steps": 5, "num_steps": 50, "min_ratio": 0.1}
    rates = [lr_factor(step, **options) for step in range(51)]
    assert rates[50] == pytest.approx(end)
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(rates[5:]))
