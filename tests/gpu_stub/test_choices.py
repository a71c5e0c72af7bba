"""What torch chooses on the stub GPU: attention kernels, and memory.

Functions without "test" in their names run in a process on the stub.
"""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.gpu_stub.steps import experiment_cases, random_pictures
from tests.gpu_stub.stub import ask_once
from vitcli.core.torch_use import autocast_to
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.speed.workload import make_workload
from vitcli.runner.text import ignore_message
from vitcli.runner.train.estimate import make_estimate
from vitcli.runner.train.start import Request, start

pytestmark = pytest.mark.ci
ALLOWED = (0.75, 1.25)
"""Smallest and largest estimate of the memory, divided by the allocator's peak."""
CODE = """import json
from tests.gpu_stub.test_choices import *
kernels = {
    name: {precision: kernels_of(name, precision) for precision in PRECISIONS}
    for name in experiment_cases()
}
print(json.dumps([kernels, [(*case, estimate_by_peak(*case)) for case in CASES]]))
"""


def test_attention_takes_a_fused_kernel():
    found, _ = ask_once("choices", CODE)
    assert found.keys() == {*experiment_cases()}
    assert {name: row for name, row in found.items() if "math" in str(row)} == {}
    without = [load_experiment(name).spec for name, row in found.items() if not any(row.values())]
    assert {spec.model.family for spec in without} == {"convnet", "resnet18"}
    assert found["cifar10-plain"]["fp32"] == ["efficient"]  # the only fused kernel for fp32


def test_the_estimated_memory_is_near_the_peak():
    _, found = ask_once("choices", CODE)
    least, most = ALLOWED
    assert len(found) == len(CASES)
    assert [case for case in found if not least <= case[-1] <= most] == []


KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""Values of the enumeration ``SDPBackend`` of torch; ``math`` stores the weights."""


PRECISIONS = ("fp32", "bf16")
"""Of each width of a number, as kernels are chosen by that."""


def kernels_of(name: str, precision: str) -> list[str]:
    changes = {"train.compile": False, "train.precision": precision}
    work = make_workload(load_experiment(name, changes), "cuda", ignore_message)
    chosen, attend = set(), F.scaled_dot_product_attention

    def noted(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        options = {name: each for name, each in options.items() if each is not None}
        choice = torch._fused_sdp_choice(query, key, value, attn_mask, **options)
        chosen.add(KERNELS[choice])
        return attend(query, key, value, attn_mask, **options)

    F.scaled_dot_product_attention = noted  # type: ignore[assignment]
    try:
        with autocast_to(work.device, work.built.autocast):
            batch = next(work.batches())
            work.built.task.losses({name: value[:8] for name, value in batch.items()})
    finally:
        F.scaled_dot_product_attention = attend
    return sorted(chosen)


IMAGES = 2000
CASES = [("quickstart", "fp32"), ("cifar10-base-p2", "fp32"), ("cifar10-strong", "bf16")]


def estimate_by_peak(name: str, precision: str) -> float:
    """Return the memory that ``--dry-run`` says, divided by the allocator's peak in a training."""
    changes = {"train.compile": False, "train.precision": precision}
    changes |= {"train.limit_batches": 2, "train.epochs": 1}
    experiment = load_experiment(name, changes)
    data = random_pictures(experiment, IMAGES)
    estimate = make_estimate(experiment, "cuda", data).memory_bytes
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = Path(f"{name}-{precision}")
    start(experiment, Request(device="cuda", output=output, load=lambda *_, **__: data))
    return estimate / (torch.cuda.max_memory_allocated() - before)
