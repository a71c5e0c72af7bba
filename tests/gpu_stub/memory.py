"""Memory of torch's allocator beside the estimate, in a process on the stub GPU."""

import gc
from pathlib import Path

import torch

from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.train.estimate import make_estimate
from vitcli.runner.train.rehearsal import random_data, with_statistics
from vitcli.runner.train.start import Request, start

IMAGES = 2000
CASES = [
    ("quickstart", "fp32"),
    ("cifar10-base-p2", "fp32"),
    ("cifar10-strong", "bf16"),
]


def peak_and_estimate(name: str, precision: str) -> tuple[int, int]:
    """Return the allocator's peak in a training, and what ``--dry-run`` says."""
    changes = {"train.compile": False, "train.precision": precision}
    changes |= {"train.limit_batches": 2, "train.epochs": 1}
    experiment = load_experiment(name, changes)
    spec = with_statistics(fit_to_data(experiment.spec, describe_data(experiment.spec.data)))
    data = random_data(spec, IMAGES, torch.device("cpu"))
    estimate = make_estimate(experiment, "cuda", data).memory_bytes
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    request = Request(device="cuda", output=Path(f"{name}-{precision}"))
    start(experiment, request, load=lambda *_, **__: data)
    return torch.cuda.max_memory_allocated() - before, estimate


def all_peaks() -> list[tuple[str, str, float]]:
    """Return the estimate divided by the peak, for each case."""
    found = []
    for name, precision in CASES:
        peak, estimate = peak_and_estimate(name, precision)
        found.append((name, precision, estimate / peak))
    return found
