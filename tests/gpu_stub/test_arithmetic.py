"""Determinism, TF32 and convolutions on a GPU that computes nothing.

Functions without "test" in their names run in a process on the stub.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gpu_stub.steps import random_pictures
from tests.gpu_stub.stub import ask_once, ask_stub
from tests.gpu_stub.test_data import ASK
from vitcli.core.objectives.classify import Classify
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start

NARROW: dict[str, Any] = {"model.embed_dim": 24, "model.num_heads": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "quickstart": {"model.depth": 1},
    "cifar10-resnet18": {},
    "cifar10-swin": NARROW | {"model.depths": [2, 1]},
    "cifar10-coatnet": NARROW | {"model.depths": [1, 1, 1], "model.stem_width": 8},
    "cifar10-pit": NARROW | {"model.depths": [1, 1]},
}
"""Experiment of a family -> changes that make the model small."""


def test_every_family_trains_with_deterministic_kernels_only():
    found = ask_once("data", ASK)["exact"]
    assert found == dict.fromkeys(FAMILIES, True) | {"without": False}


def test_tf32_holds_in_the_steps_only_and_convolutions_are_channels_last_and_tuned():
    full = [["highest", False]]
    found = ask_once("data", ASK)["settings"]
    assert found["tf32"] == {"losses": [["high", True]], "outputs": full}
    assert found["fp32"] == {"losses": full, "outputs": full}
    assert found["layouts"] == [[True, True]]
    assert found["benchmark after"] is False


@pytest.mark.ci
def test_tf32_compiles_each_part_once(tmp_path):
    """The model, its evaluation and its batches: each for the settings in which it runs."""
    code = """
import json
from torch._dynamo.utils import counters
from tests.gpu_stub.test_arithmetic import train
changes = {"train.precision": "tf32", "train.compile": True, "model.depth": 1, "train.epochs": 2}
train("quickstart", changes)
print(json.dumps(counters["stats"]["unique_graphs"]))
"""
    assert ask_stub(code, cwd=tmp_path) == 3


def train(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    fields = {"train.limit_batches": 2, "train.epochs": 1, "train.batch_size": 8}
    experiment = load_experiment(name, fields | {"train.compile": False} | changes)
    data = random_pictures(experiment, 100)
    request = Request(device="cuda", output=Path(tempfile.mkdtemp()) / "run")
    return start(experiment, request, load=lambda *_, **__: data).result


def exactness() -> dict[str, bool]:
    exact = {"train.deterministic": True}
    found = {name: train(name, small | exact)["exact"] for name, small in FAMILIES.items()}
    return found | {"without": train("quickstart", {"train.deterministic": False})["exact"]}


def settings() -> dict[str, Any]:
    seen: dict[str, set[Any]] = {}
    layouts: set[tuple[bool, bool]] = set()

    def note(name: str) -> None:
        plain = getattr(Classify, name)

        def noted(*args: Any, **options: Any) -> Any:
            precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
            seen.setdefault(name, set()).add(precision)
            return plain(*args, **options)

        patch.setattr(Classify, name, noted)

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        out = convolve(self, x)
        if x.is_cuda:  # operations are counted without a device
            last = out.is_contiguous(memory_format=torch.channels_last)
            layouts.add((last, torch.backends.cudnn.benchmark))
        return out

    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        note("losses")
        note("outputs")
        convolve = nn.Conv2d.forward
        patch.setattr(nn.Conv2d, "forward", forward)
        for precision in ("tf32", "fp32"):
            seen.clear()
            changes = {"train.precision": precision, "model.widths": [8, 8, 8]}
            assert train("cifar10-convnet", changes)["precision"] == precision
            found[precision] = {name: sorted(values) for name, values in seen.items()}
    return found | {"layouts": sorted(layouts), "benchmark after": torch.backends.cudnn.benchmark}
