"""Batches, epochs, checkpoints, evaluations and arithmetic on the stub GPU.

Functions without "test" in their names run in a process on the stub.
"""

import gc
import tempfile
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gpu_stub.counting import Seen, counting
from tests.gpu_stub.steps import random_pictures
from tests.gpu_stub.stub import ask_once, ask_stub
from vitcli.core.data import batches
from vitcli.core.data.batches import (
    EpochPlan,
    channels_on_device,
    epoch_rows,
    rows_on_device,
)
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import AugmentSpec
from vitcli.plugins.bench.training import make_workload
from vitcli.runner.evaluate.weights import weights_sha256
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.text import ignore_message
from vitcli.runner.train.dry_run import dry_run
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train as run_training
from vitcli.runner.train.trainer import Trainer

IMPORT = "import json; from tests.gpu_stub import steps, test_data as data\n"


ASK = f"""{IMPORT}
found = {{"beginning": data.beginning(), "slow": data.slow_copies()}}
found |= {{"sha256": data.hash_of_weights()}}
found |= {{"training": data.training(), "refused": steps.refuse_captures()}}
found |= {{"exact": data.exactness(), "settings": data.settings()}}
print(json.dumps(found))
"""


def test_the_tables_of_an_epoch_are_copied_from_pinned_memory_without_a_wait():
    found = ask_once("data", ASK)["beginning"]
    assert found["to_device"] == found["tables"] + 2, "a table, the scale and the shift"
    assert found["unpinned"] == found["waits"] == found["to_host"] == 0


def test_copies_that_wait_or_come_from_pageable_memory_are_seen():
    """The control: a stub that counts none of them would pass the other tests."""
    found = ask_once("data", ASK)["slow"]
    assert (found["to_device"], found["to_host"], found["unpinned"]) == (1, 1, 1)
    assert found["waits"] == 1, "for the copy to the host"


def test_weights_on_a_device_have_a_hash():
    assert len(ask_once("data", ASK)["sha256"]) == 64, "predict hashes the weights on the device"


def test_a_training_draws_ahead_and_measures_its_outputs_once():
    found = ask_once("data", ASK)["training"]
    assert found["drawn"] == ["0 here", "1 thread", "2 thread", "0 here"]
    assert found["left"] == []
    *first, again = found["waits"]
    assert all(first)
    assert again == 0, "the last outputs are used again"


CUDA = torch.device("cuda")
COUNT = 1100


def counts(seen: Seen) -> dict[str, int]:
    kinds = {"to_device": "h2d", "to_host": "d2h", "waits": "sync", "unpinned": "unpinned"}
    return {name: seen.count(kind) for name, kind in kinds.items()}


def slow_copies() -> dict[str, int]:
    ones = torch.ones(1000, device=CUDA)
    with counting() as seen:
        ones.copy_(torch.zeros(1000), non_blocking=True)
        ones.cpu()
    return counts(seen)


def beginning() -> dict[str, int]:
    augment = AugmentSpec(crop_padding=4, flip="random", policy="rand_augment", mixup=0.8)
    rows = epoch_rows(COUNT, (32, 32), augment, seed=0, epoch=0, at_once=True)
    with counting() as seen:
        rows_on_device(rows, CUDA)
        channels_on_device((0.5,) * 3, (0.2,) * 3, CUDA)
    return counts(seen) | {"tables": len(rows)}


def hash_of_weights() -> str:
    work = make_workload(load_experiment("quickstart"), "cuda", ignore_message)
    return weights_sha256(work.training.tensors())


def training() -> dict[str, Any]:
    drawn: list[str] = []
    waits: list[int] = []
    original = batches.DrawnAhead.take

    def take(self: batches.DrawnAhead, *key: Hashable) -> EpochPlan:
        drawn.append(f"{key[0]} {'thread' if key in self._drawn else 'here'}")
        return original(self, *key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches.DrawnAhead, "take", take)
        patch.setattr(Trainer, "test_outputs", counting_waits(Trainer.test_outputs, waits))
        train("quickstart", {"train.epochs": 3}, COUNT)
    names = [thread.name for thread in threading.enumerate()]
    left = [name for name in names if name.startswith(batches.THREAD)]
    return {"drawn": drawn, "left": left, "waits": waits}


def counting_waits(function: Callable[..., Any], found: list[int]) -> Callable[..., Any]:
    def count(*args: Any) -> Any:
        with counting() as seen:
            result = function(*args)
        found.append(seen.count("sync"))
        return result

    return count


# Determinism, TF32 and convolutions


NARROW: dict[str, Any] = {"model.embed_dim": 24, "model.num_heads": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "quickstart": {"model.depth": 1},
    "cifar10-resnet18": {},
    "cifar10-swin": NARROW | {"model.depths": [2, 1]},
    "cifar10-coatnet": NARROW | {"model.depths": [1, 1, 1], "model.stem_width": 8},
    "cifar10-pit": NARROW | {"model.depths": [1, 1]},
}


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
from tests.gpu_stub.test_data import train
changes = {"train.precision": "tf32", "train.compile": True, "model.depth": 1, "train.epochs": 2}
train("quickstart", changes)
print(json.dumps(counters["stats"]["unique_graphs"]))
"""
    assert ask_stub(code, cwd=tmp_path) == 3


def train(name: str, changes: dict[str, Any], count: int = 100) -> dict[str, Any]:
    fields = {"train.limit_batches": 2, "train.epochs": 1, "train.batch_size": 8}
    experiment = load_experiment(name, fields | {"train.compile": False} | changes)
    data = random_pictures(experiment, count)
    output = Path(tempfile.mkdtemp()) / "run"
    request = Request(device="cuda", output=output, load=lambda *_, **__: data)
    return run_training(experiment, request).result


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


SIZES = [("quickstart", "fp32"), ("cifar10-base-p2", "fp32"), ("cifar10-strong", "bf16")]


@pytest.mark.ci
def test_the_estimated_memory_is_near_the_peak(tmp_path):
    code = f"{IMPORT}print(json.dumps([data.estimate_by_peak(*case) for case in data.SIZES]))"
    found = ask_stub(code, cwd=tmp_path)
    assert [share for share in found if not 0.75 <= share <= 1.25] == []


def estimate_by_peak(name: str, precision: str) -> float:
    """Return the memory that ``--dry-run`` says, divided by the allocator's peak in a training."""
    changes = {"train.compile": False, "train.precision": precision}
    changes |= {"train.limit_batches": 2, "train.epochs": 1, "data.name": "scenes"}
    experiment = load_experiment(name, changes)
    images = random_pictures(experiment, 2000)
    output = Path(f"{name}-{precision}")
    request = Request(device="cuda", output=output, load=lambda *_, **__: images)
    stated = dry_run(experiment, request).memory_bytes
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run_training(experiment, request)
    return stated / torch.cuda.max_memory_allocated()
