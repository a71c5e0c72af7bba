"""When the steps of a training are CUDA graphs."""

import pytest
import torch

from tests.core.specs import changed
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.runner.errors import ConfigError
from vitcli.runner.train.build import use_graphs

DROPS = {"drop_path": 0.1, "attn_drop": 0.1, "proj_drop": 0.1}


def uses(device: str, graphs: bool | None = None, recompute: bool = False, **model) -> bool:
    train = TrainSpec(graphs=graphs, grad_checkpointing=recompute)
    messages: list[str] = []
    spec = ExperimentSpec(model=changed(**model), train=train)
    found = use_graphs(spec, torch.device(device), messages.append)
    assert bool(messages) == (recompute and not found)
    return found


@pytest.mark.parametrize(
    ("device", "graphs", "expected"),
    [
        ("cuda", None, True),
        ("cuda:1", True, True),
        ("cuda", False, False),
        ("cpu", None, False),
        ("mps", None, False),
        ("cpu", False, False),
    ],
)
def test_graphs_are_used_on_cuda_unless_they_are_switched_off(device, graphs, expected):
    assert uses(device, graphs) == expected


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_graphs_need_cuda(device):
    with pytest.raises(ConfigError, match=f"train.graphs: CUDA graphs need .* not {device}"):
        uses(device, graphs=True)


@pytest.mark.parametrize("rate", DROPS)
def test_recomputed_dropout_is_not_captured(rate):
    """In a graph, a recomputed block would draw other numbers than in the forward pass."""
    assert uses("cuda", recompute=True)
    assert uses("cuda", **{rate: 0.1})
    assert not uses("cuda", recompute=True, **{rate: 0.1})
