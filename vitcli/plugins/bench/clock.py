"""Clocks that wait for the device, and measurements of the device's best speed."""

import itertools
import time
from collections.abc import Callable, Iterator

import torch

PEAK_SECONDS = 0.5
MATMUL_SIDE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}


def now(device: torch.device) -> float:
    """Return the time in seconds, after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], object], device: torch.device) -> float:
    began = now(device)
    work()
    return now(device) - began


def turns(
    works: dict[str, Callable[[], object]], device: torch.device, *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return how many seconds one call of each function takes, for each round.

    The functions are measured in turns: A B A B ... A turn takes about ``seconds``. Each function
    is first called twice: once as a warm-up, and once to find how many calls fit into a turn.
    """
    counts = {}
    for name, work in works.items():
        work()
        counts[name] = max(1, round(seconds / max(timed(work, device), 1e-9)))
    measured: dict[str, list[float]] = {name: [] for name in works}
    for _, (name, work) in itertools.product(range(rounds), works.items()):
        began = now(device)
        for _ in range(counts[name]):
            work()
        measured[name].append((now(device) - began) / counts[name])
    return measured


def step_of(iterator: Iterator[object]) -> Callable[[], object]:
    return lambda: next(iterator)


def matmul_peak(device: torch.device, dtype: torch.dtype | None) -> float:
    """Multiply large square matrices several times; return the FLOP/s of the fastest product."""
    side = MATMUL_SIDE.get(device.type, 4096)
    a = torch.randn(side, side, device=device, dtype=dtype or torch.float32)
    b = torch.randn_like(a)
    return float(2 * side**3 / _fastest_seconds(lambda: a @ b, device))


def copy_bandwidth(device: torch.device) -> float:
    """Make several large copies; return the bytes per second, read plus written, of the fastest."""
    count = COPY_BYTES.get(device.type, 2**29)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / _fastest_seconds(lambda: target.copy_(source), device)


def _fastest_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < PEAK_SECONDS and len(times) < 100):
        times.append(timed(work, device))
    return min(times)
