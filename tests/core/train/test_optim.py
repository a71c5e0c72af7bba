"""Parameter groups, optimisers and the average of the weights."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitcli.core.spec import OPTIMIZERS, OptimSpec
from vitcli.core.train import optim
from vitcli.core.train.ema import Ema
from vitcli.core.train.muon import Muon
from vitcli.core.train.optim import (
    build_optimizers,
    learning_rates,
    load_state_tensors,
    set_learning_rates,
    state_tensors,
)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.ones(1, 1, 4))
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.blocks(x + self.cls_token[0]))


def decayed(model: nn.Module, spec: OptimSpec) -> set[str]:
    names = {id(p): n for n, p in model.named_parameters()}
    return {
        names[id(p)]
        for optimizer in build_optimizers(model, spec)
        for group in optimizer.param_groups
        for p in group["params"]
        if group["weight_decay"] > 0
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_covers_matrices_only(name):
    assert decayed(Tiny(), OptimSpec(name=name)) == {"blocks.0.weight", "head.weight"}


def test_decay_all_covers_all_parameters():
    model = Tiny()
    assert decayed(model, OptimSpec(decay_all=True)) == {n for n, _ in model.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_is_in_one_group_and_is_trained(name):
    model = Tiny()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizers = build_optimizers(model, OptimSpec(name=name, lr=0.1, muon_lr=0.1))
    held = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    model(torch.randn(8, 4)).square().sum().backward()
    set_learning_rates(optimizers, learning_rates(optimizers, 1.0))
    for optimizer in optimizers:
        optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    # A bias before a batch norm has no gradient. All other parameters must change.
    assert moved | {"blocks.0.bias", "cls_token"} == set(before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimisers_take_the_steps_of_torch(name, monkeypatch):
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Tiny()
        optimizers = build_optimizers(model, OptimSpec(name=name, lr=0.1, muon_lr=0.1))
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(torch.randn(8, 4)).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        return [*model.parameters(), *state_tensors(optimizers).values()]

    ours = trained()
    monkeypatch.setattr(optim, "Muon", Muon)  # test_muon.py compares it with torch's
    for each in ("AdamW", "Adam", "SGD"):
        monkeypatch.setattr(optim, each, getattr(torch.optim, each))
    assert all(map(torch.equal, ours, trained()))


def test_ema_equals_its_closed_form():
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


def test_ema_copies_counters_and_averages_running_statistics():
    model = nn.BatchNorm1d(2)
    ema = Ema(model, decay=0.9)
    model(torch.randn(16, 2) + 5)
    ema.update(ema.share(1))
    assert ema.model.num_batches_tracked == 1
    assert_close(ema.model.running_mean, model.running_mean * (1 - 2 / 11))


def test_the_state_of_other_parameters_is_refused():
    """This happens after a release that moves parameters to another optimiser."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizers = build_optimizers(model, OptimSpec())
    model(torch.randn(2, 4)).sum().backward()
    optimizers[0].step()
    tensors = dict(state_tensors(optimizers))
    load_state_tensors(optimizers, tensors)
    swapped = {name: tensors[name.replace("0.0.", "0.1.", 1)] for name in tensors if ".0." in name}
    with pytest.raises(ValueError, match="state 0 belongs to another parameter"):
        load_state_tensors(optimizers, tensors | swapped)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_state_of_a_channels_last_filter_has_its_layout(name):
    """Fused optimisers refuse tensors in another layout than that of their parameter."""
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizers = build_optimizers(model, OptimSpec(name=name))
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizers[0].step()
    stored = {k: v.clone().contiguous() for k, v in state_tensors(optimizers).items()}
    load_state_tensors(optimizers, stored)
    optimizers[0].step()
    filters = [v for v in optimizers[0].state[model.weight].values() if v.ndim == 4]
    assert filters
    assert all(v.stride() == model.weight.stride() for v in filters)
