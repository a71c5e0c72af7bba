"""The speed of matrix products on this CPU, in fp32 and bf16."""

import itertools
import statistics
import time
from dataclasses import dataclass

import torch

from vitcli.runner.machine.device import DTYPES, computes_bf16, pick_device, this_processor
from vitcli.runner.text import Listener

Size = tuple[int, int, int]
"""Rows of the first matrix, its columns, and columns of the second matrix."""
LARGE: Size = (1024, 1024, 1024)
THIN: Size = (8320, 96, 96)
"""A linear layer of a small ViT: 128 images of 65 tokens, width 96."""
SECONDS = 0.2
MAX_CALLS = 20
LONGEST = 0.5
"""Seconds of the longest product that ``measure_products`` computes, as estimated from THIN."""


@dataclass(frozen=True)
class Products:
    """FLOP/s of products on this CPU."""

    threads: int
    rates: dict[tuple[str, Size], float]
    """(precision, size) -> FLOP/s; a product that takes too long is missing."""

    @property
    def bf16_slowdown(self) -> float:
        """Return how many times as long as in fp32 the thin product takes in bf16."""
        return self.rates["fp32", THIN] / self.rates["bf16", THIN]


def measure_products() -> Products:
    threads = torch.get_num_threads()
    rates: dict[tuple[str, Size], float] = {}
    for precision, size in itertools.product(("fp32", "bf16"), (THIN, LARGE)):
        thin = rates.get((precision, THIN))
        if thin is None or flops(size) / thin <= LONGEST:
            rates[precision, size] = product_rate(size, precision)
    return Products(threads, rates)


def product_rate(size: Size, precision: str) -> float:
    """Return the FLOP/s of a product: the median of calls that take about ``SECONDS`` together.

    No random number is drawn, so a training that follows is the same with and without it.
    """
    rows, inner, columns = size
    dtype = DTYPES[precision] or torch.float32
    a, b = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    a @ b  # warm-up
    times: list[float] = []
    while not times or (sum(times) < SECONDS and len(times) < MAX_CALLS):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return flops(size) / statistics.median(times)


def flops(size: Size) -> int:
    rows, inner, columns = size
    return 2 * rows * inner * columns


def warn_if_emulated(
    precision: str, device_name: str, on_message: Listener, instead: str = "type --precision fp32"
) -> None:
    """Say how slow bf16 is on a CPU that emulates it. Commands measure this once, workers never."""
    if precision != "bf16" or pick_device(device_name).type != "cpu":
        return
    if computes_bf16(this_processor()):
        return
    slowdown = product_rate(THIN, "fp32") / product_rate(THIN, "bf16")
    if slowdown > 1:
        on_message(f"warning: {describe_slowdown(slowdown)}; {instead}")


def describe_slowdown(slowdown: float) -> str:
    digits = 0 if slowdown >= 10 else 1
    return f"this CPU emulates bf16: a product takes {slowdown:.{digits}f} times as long as in fp32"
