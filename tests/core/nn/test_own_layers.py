"""An ordinary ``nn.Module`` fills a slot: its row names the fields that its options come from."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.core.specs import REQUIRED, changed, classify
from tests.core.trainings import training_on
from vitcli.core.models.build import build_model
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.spec import FAMILIES
from vitcli.core.spec.slots import (
    ATTENTIONS,
    FFNS,
    NORMS,
    SLOTS,
    AttentionRow,
    FfnRow,
    NormRow,
)


class MeanOfValues(nn.Module):
    """Attention that gives each value of a head the same weight, times a learned number."""

    def __init__(self, shape: TokenShape, *, window: int = 0, rate: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(shape.num_heads, 1, shape.head_dim))
        self.options = {"window": window, "rate": rate}

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (self.gain * value.mean(2, keepdim=True)).expand_as(query)


class Bottleneck(nn.Module):
    def __init__(self, shape: TokenShape, *, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape.embed_dim, width), nn.SiLU(), nn.Linear(width, shape.embed_dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Centred(nn.Module):
    def __init__(self, dim: int, *, epsilon: float) -> None:
        super().__init__()
        self.gain, self.epsilon = nn.Parameter(torch.ones(dim)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.gain * x / (x.norm(dim=-1, keepdim=True) + self.epsilon)


OWN: dict[str, Any] = {"attention": "own", "ffn": "own", "norm": "own"}


@pytest.fixture
def own_rows(monkeypatch) -> None:
    """A row of each table, until the test ends."""
    rows: list[tuple[Any, Any]] = [
        (
            ATTENTIONS,
            AttentionRow(
                about="a mean",
                build=MeanOfValues,
                options={"window": "attn_window", "rate": "attn_drop"},
                time="N",
                memory="N",
                has_attention_matrix=False,
            ),
        ),
        (FFNS, FfnRow(about="two layers", build=Bottleneck, options={"width": "hidden_dim"})),
        (NORMS, NormRow(about="centred", build=Centred, options={"epsilon": "norm_eps"})),
    ]
    for table, row in rows:
        monkeypatch.setitem(table, "own", row)


@pytest.mark.usefixtures("own_rows")
@pytest.mark.parametrize("family", ["vit", "swin", "coatnet", "pit"])
def test_a_model_of_own_layers_takes_a_training_step(family):
    slots = {name: row for name, row in OWN.items() if name in FAMILIES[family].spec.model_fields}
    model = build_model(changed(family=family, **REQUIRED[family], **slots), seed=0)
    own = [type(part) for part in model.modules()]
    assert {Bottleneck, Centred} <= {*own}
    assert (MeanOfValues in own) == ("attention" in slots)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    batch = {"images": torch.randn(4, 3, 16, 16), "targets": torch.arange(4)}
    (step,) = training_on(classify(model), [batch], {}).run_epoch(0)
    assert step.scalars["loss"].isfinite()
    unused = ("qkv.bias", "relative_table", "temperature")
    same = [name for name, tensor in model.named_parameters() if tensor.equal(before[name])]
    assert [name for name in same if not name.endswith(unused)] == []


@pytest.mark.usefixtures("own_rows")
def test_the_options_of_a_layer_have_the_values_of_the_named_fields():
    fields = {"attn_window": 5, "attn_drop": 0.25, "mlp_dim": 7, "norm_eps": 0.5}
    model = build_model(changed(**OWN, **fields), seed=0)
    layers = {type(part): part for part in model.modules()}
    assert layers[MeanOfValues].options == {"window": 5, "rate": 0.25}
    assert layers[Bottleneck].layers[0].out_features == 7
    assert layers[Centred].epsilon == 0.5


def test_every_option_of_a_row_is_an_attribute_of_some_family():
    specs = [row.spec for row in FAMILIES.values()]
    fields = {name for spec in specs for name in [*spec.model_fields, *dir(spec)]}
    named = {
        field
        for table in SLOTS.values()
        for row in table.values()
        for field in row.options.values()
    }
    assert named
    assert named <= fields
