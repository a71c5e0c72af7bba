"""Determinism, TF32 and convolutions on a GPU that computes nothing."""

from typing import Any

import pytest

from tests.gpu_stub.stub import ask_once, ask_stub

NARROW: dict[str, Any] = {"model__embed_dim": 24, "model__num_heads": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "quickstart": {"model__depth": 1},
    "cifar10-resnet18": {},
    "cifar10-swin": NARROW | {"model__depths": [2, 1]},
    "cifar10-coatnet": NARROW | {"model__depths": [1, 1, 1], "model__stem_width": 8},
    "cifar10-pit": NARROW | {"model__depths": [1, 1]},
}
"""Experiment of a family -> changes that make the model small."""
TRAIN = """
import json, sys
from pathlib import Path
import torch
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.train.rehearsal import random_data, with_statistics
from vitcli.runner.train.start import Request, start

def train(name, output, epochs=1, **changes):
    fields = {"train.limit_batches": 2, "train.epochs": epochs, "train.compile": False}
    fields |= {"train.batch_size": 8, **{k.replace("__", "."): v for k, v in changes.items()}}
    experiment = load_experiment(name, fields)
    spec = with_statistics(fit_to_data(experiment.spec, describe_data(experiment.spec.data)))
    data = random_data(spec, 100, torch.device("cpu"))
    request = Request(device="cuda", output=Path(output))
    return start(experiment, request, load=lambda *_, **__: data).result
"""

ASK = f"""
exact = {{
    name: train(name, name, train__deterministic=True, **small)["exact"]
    for name, small in {FAMILIES}.items()
}}
exact["without"] = train("quickstart", "without", train__deterministic=False)["exact"]
"""
ASK += """
from torch import nn
from vitcli.core.objectives.classify import Classify
seen, layouts = {}, []
def note(name):
    plain = getattr(Classify, name)
    def noted(*args, **options):
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        seen.setdefault(name, set()).add(precision)
        return plain(*args, **options)
    setattr(Classify, name, noted)
note("losses")
note("outputs")
plain = nn.Conv2d.forward
def forward(self, x):
    out = plain(self, x)
    if x.is_cuda:  # operations are counted without a device
        last = out.is_contiguous(memory_format=torch.channels_last)
        layouts.append((last, torch.backends.cudnn.benchmark))
    return out
nn.Conv2d.forward = forward
found = []
for precision in ("tf32", "fp32"):
    seen.clear()
    changes = {"train__precision": precision, "model__widths": [8, 8, 8]}
    done = train("cifar10-convnet", precision, **changes)
    assert done["precision"] == precision
    found.append({name: sorted(values) for name, values in seen.items()})
benchmark = [sorted(set(layouts)), torch.backends.cudnn.benchmark]
print(json.dumps({"exact": exact, "settings": [*found, *benchmark]}))
"""


def test_every_family_trains_with_deterministic_kernels_only():
    found = ask_once("arithmetic", TRAIN + ASK)["exact"]
    assert found == dict.fromkeys(FAMILIES, True) | {"without": False}


def test_tf32_holds_in_the_steps_only_and_convolutions_are_channels_last_and_tuned():
    full = [["highest", False]]
    tf32, fp32, layouts, benchmark_after = ask_once("arithmetic", TRAIN + ASK)["settings"]
    assert tf32 == {"losses": [["high", True]], "outputs": full}
    assert fp32 == {"losses": full, "outputs": full}
    assert layouts == [[True, True]]
    assert benchmark_after is False


@pytest.mark.ci
def test_tf32_compiles_each_part_once(tmp_path):
    """The model, its evaluation and its batches: each for the settings in which it runs."""
    code = """
from torch._dynamo.utils import counters
changes = {"train__precision": "tf32", "train__compile": True, "model__depth": 1}
train("quickstart", "run", epochs=2, **changes)
print(json.dumps(counters["stats"]["unique_graphs"]))
"""
    assert ask_stub(TRAIN + code, cwd=tmp_path) == 3
