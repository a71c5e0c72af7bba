"""Determinism, TF32 and convolutions on a GPU that computes nothing."""

import pytest

from tests.gpu_stub.stub import ask_stub

FAMILIES = ("quickstart", "cifar10-resnet18", "cifar10-swin", "cifar10-coatnet", "cifar10-pit")
TRAIN = """
import json, sys
from pathlib import Path
import torch
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.config import fit_to_data, load_experiment
from vitcli.runner.train.rehearsal import random_data, with_statistics
from vitcli.runner.train.start import Request, start

def train(name, output, resume=False, epochs=2, **changes):
    fields = {"train.limit_batches": 2, "train.epochs": epochs, "train.compile": False}
    fields |= {"train.batch_size": 8, **{k.replace("__", "."): v for k, v in changes.items()}}
    experiment = load_experiment(name, fields)
    spec = with_statistics(fit_to_data(experiment.spec, describe_data(experiment.spec.data)))
    data = random_data(spec, 100, torch.device("cpu"))
    request = Request(device="cuda", output=Path(output), resume=resume)
    return start(experiment, request, load=lambda *_, **__: data).result
"""


def test_every_family_trains_with_deterministic_kernels_only(tmp_path):
    code = f"""
found = {{}}
for name in {FAMILIES}:
    for wanted in (True, False):
        done = train(name, f"{{name}}-{{wanted}}", train__deterministic=wanted)
        found[f"{{name}} {{wanted}}"] = done["exact"]
print(json.dumps(found))
"""
    found = ask_stub(TRAIN + code, cwd=tmp_path)
    assert len(found) == 2 * len(FAMILIES)
    assert found == {key: key.endswith("True") for key in found}


def test_a_training_continues_without_determinism_and_says_so(tmp_path):
    code = """
from tests.stopping import StopAt
from vitcli.runner.errors import StoppedError
from vitcli.runner.train import trainer
plain = trainer.Trainer.train
found = {}
for wanted in (True, False):
    trainer.Trainer.train = lambda self, _, *epoch: plain(self, StopAt(3), *epoch)
    try:
        train("cifar10-resnet18", f"run-{wanted}", train__deterministic=wanted)
    except StoppedError:
        found["stopped"] = True
    trainer.Trainer.train = plain
    done = train("cifar10-resnet18", f"run-{wanted}", resume=True, train__deterministic=wanted)
    found[str(wanted)] = done["exact"]
print(json.dumps(found))
"""
    assert ask_stub(TRAIN + code, cwd=tmp_path) == {"stopped": True, "True": True, "False": False}


def test_tf32_holds_in_the_steps_and_not_in_the_evaluation(tmp_path):
    code = """
from vitcli.core.objectives.classify import Classify
seen = {}
def note(name):
    plain = getattr(Classify, name)
    def noted(*args, **options):
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        seen.setdefault(name, set()).add(precision)
        return plain(*args, **options)
    setattr(Classify, name, noted)
note("losses")
note("outputs")
done = train("cifar10-resnet18", "run", train__precision="tf32")
assert done["precision"] == "tf32"
tf32 = {name: sorted(values) for name, values in seen.items()}
seen.clear()
done = train("cifar10-resnet18", "run-fp32", train__precision="fp32")
print(json.dumps([tf32, {name: sorted(values) for name, values in seen.items()}]))
"""
    full = [["highest", False]]
    tf32, fp32 = ask_stub(TRAIN + code, cwd=tmp_path)
    assert tf32 == {"losses": [["high", True]], "outputs": full}
    assert fp32 == {"losses": full, "outputs": full}


def test_convolutions_are_channels_last_and_tuned(tmp_path):
    code = """
from torch import nn
seen = []
plain = nn.Conv2d.forward
def forward(self, x):
    out = plain(self, x)
    if x.is_cuda:  # operations are counted without a device
        last = out.is_contiguous(memory_format=torch.channels_last)
        seen.append((last, torch.backends.cudnn.benchmark))
    return out
nn.Conv2d.forward = forward
train("cifar10-resnet18", "run", epochs=1)
print(json.dumps({"seen": sorted(set(seen)), "after": torch.backends.cudnn.benchmark}))
"""
    assert ask_stub(TRAIN + code, cwd=tmp_path) == {"seen": [[True, True]], "after": False}


@pytest.mark.ci
def test_tf32_compiles_each_part_once(tmp_path):
    """The model, its evaluation and its batches: each for the settings in which it runs."""
    code = """
from torch._dynamo.utils import counters
train("quickstart", "run", train__precision="tf32", train__compile=True, model__depth=1)
print(json.dumps(counters["stats"]["unique_graphs"]))
"""
    assert ask_stub(TRAIN + code, cwd=tmp_path) == 3
