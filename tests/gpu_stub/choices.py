"""Attention kernels that torch chooses, in a process on the stub GPU."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.gpu_stub.steps import one_of_each_kind
from vitcli.core.torch_use import autocast_to
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.speed.workload import make_workload
from vitcli.runner.text import ignore_message

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""Values of the enumeration ``SDPBackend`` of torch; ``math`` stores the weights."""


PRECISIONS = ("fp32", "bf16")
"""Of each width of a number, as kernels are chosen by that."""


def kernels_of(name: str, precision: str) -> list[str]:
    """Return the kernels that a training step of an experiment takes, in alphabetical order."""
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


def kernels_of_all() -> dict[str, dict[str, list[str]]]:
    """Return the kernels of an experiment of each kind in each precision."""
    return {
        name: {precision: kernels_of(name, precision) for precision in PRECISIONS}
        for name in one_of_each_kind()
    }
