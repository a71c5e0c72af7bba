"""Ranges of the layers in a step: what is measured, in which order, and before it is changed."""

import pytest
import torch
from torch import nn

from vitcli.core.inspect.ranges import LayerRanges, range_of


class Fused(nn.Module):
    """Computes with the weights of a layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return x @ self.inner.weight.T + self.inner.bias


class Root(nn.Module):
    """Has a gradient of infinity at 0, where its value is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (x * 0 + self.shift).sqrt()


def watched(module, x, *, scale=1.0, change=lambda: None):
    layers = LayerRanges(module)
    with layers.watch(scale):
        (module(x).sum() * scale).backward()
        change()
    return {(row["values"], row["layer"]): row for row in layers.rows()}


def test_rows_are_in_the_order_of_computation():
    rows = watched(nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), Fused()), torch.ones(4, 2))
    assert [*rows] == [
        *(("activations", "0"), ("activations", "2")),
        *(("gradients", "2.inner"), ("gradients", "0")),
        *(("weights", "0"), ("weights", "2.inner")),
    ]


def test_values_are_kept_before_they_are_overwritten():
    """A ReLU changes an output in place; the gradient is clipped; the weights take the step."""
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, -1.0)
    nn.init.zeros_(layer.bias)

    def step():
        layer.weight.grad.zero_()
        layer.weight.data.fill_(5)

    module = nn.Sequential(layer, nn.LeakyReLU(0.5, inplace=True))
    rows = watched(module, torch.ones(4, 2), scale=8.0, change=step)
    names = ("min", "max", "rms", "not_finite_share")
    found = {kind: [row[name] for name in names] for (kind, _), row in rows.items()}
    assert found["activations"] == [-2, -2, 2, 0]
    assert found["gradients"] == [2, 2, 2, 0]
    assert found["weights"] == pytest.approx([0, 5, (4 * 25 / 6) ** 0.5, 0])


def test_the_first_row_that_is_not_finite_is_where_it_began():
    module = nn.Sequential(nn.Linear(2, 3), Root(), nn.Linear(3, 1))
    rows = watched(module, torch.ones(4, 2))
    assert next(place for place, row in rows.items() if row["not_finite_share"]) == (
        "gradients",
        "1",
    )


def test_all_calls_of_a_layer_count():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    layers = LayerRanges(layer)
    with layers.watch():
        for value in (1.0, 3.0):
            layer(torch.full((1, 1), value)).sum().backward()
    assert [(row["min"], row["max"]) for row in layers.rows()] == [(1, 3), (4, 4), (1, 1)]
    layer(torch.full((1, 1), 9.0))
    assert layers.rows()[0]["max"] == 3, "nothing is watched after the step"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -3.0, float("nan"), float("inf")], (-3, 1, 5**0.5, 0.5)),
        ([float("nan")], (None, None, None, 1)),
        ([3e38, 3e38], (3e38, 3e38, 3e38, 0)),
        ([], (None, None, None, 0)),
    ],
)
def test_a_range_is_that_of_the_finite_values(values, expected):
    found = range_of([torch.tensor(values), torch.tensor([])])
    assert [*found.values()] == pytest.approx(expected)
