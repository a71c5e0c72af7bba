"""What makes training on this CPU slower than it could be, and what to type against it."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from vitcli.runner.machine.cores import (
    cpu_quota,
    fp32_peak,
    load_average,
    read_cores,
    usable_cores,
)
from vitcli.runner.machine.processor import computes_bf16, this_processor
from vitcli.runner.machine.products import Products, describe_slowdown, measure_products
from vitcli.runner.text import quantity

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SLOW_SHARE = 0.6
"""Share of the peak below which a library, and not the memory, is the likely reason."""
EXPECTED_SPEEDUP = 1.5
"""Least speed-up of a large product by a second thread on an idle core."""
BUSY_SHARE = 0.75
"""Load average per core above which other programs slow a training down."""
MKL_TRICK = (
    "echo 'int mkl_serv_intel_cpu_true(void){return 1;}' | gcc -shared -fPIC -xc - -o ~/mkl.so;"
    " export LD_PRELOAD=~/mkl.so"
)
"""Works with MKL 2020.1 to 2024.2, which PyTorch's wheels contain; MKL 2025 checks otherwise."""
FIRST_MKL_WITHOUT_TRICK = (2025,)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What was measured and read on this machine."""

    products: Products
    cores: int
    """Cores of the machine."""
    usable: int
    """Cores that this process may use."""
    physical: int | None = None
    quota: float | None = None
    """Cores that the control group allows; None without a limit."""
    load: float | None = None
    """Load average before the measurement."""
    peak: float | None = None
    """FLOP/s in fp32 that a core can reach in theory; None if unknown."""
    is_amd: bool = False
    mkl: tuple[int, ...] | None = None
    """Version of MKL in torch; None without MKL."""
    emulates_bf16: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def survey() -> Circumstances:
    """Measure products on this machine, and read what may slow them down."""
    load, quota, cores = load_average(), cpu_quota(), read_cores()
    return Circumstances(
        products=measure_products(),
        cores=os.cpu_count() or 1,
        usable=usable_cores(quota),
        physical=cores.physical,
        quota=quota,
        load=load,
        peak=fp32_peak(cores),
        is_amd=cores.is_amd,
        mkl=mkl_version(torch.__config__.show()),
        emulates_bf16=not computes_bf16(this_processor()),
        environment=os.environ,
    )


def mkl_version(build: str) -> tuple[int, ...] | None:
    """Return the version of MKL in torch's description of its build; None without MKL."""
    found = re.search(r"Math Kernel Library Version ([\d.]+)", build)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def obstacles(seen: Circumstances) -> list[str]:
    """Return a line for each obstacle: what it is, and what to type."""
    busy = [*_busy(seen)]
    return [
        *_few_threads(seen),
        *_quota(seen),
        *busy,
        *(() if busy else _slow_mkl(seen)),  # on busy cores, every library is slow
        *_emulated_bf16(seen),
    ]


def _few_threads(seen: Circumstances) -> Iterator[str]:
    for name in THREAD_VARIABLES:
        value = seen.environment.get(name, "")
        if value.isdecimal() and 0 < int(value) < seen.usable:
            yield (
                f"{name}={value} lets torch use {value} of {quantity(seen.usable, 'core')};"
                f" type: unset {name}"
            )


def _quota(seen: Circumstances) -> Iterator[str]:
    if seen.quota is not None and seen.quota < seen.cores:
        yield (
            f"a CPU quota allows this container {seen.quota:.3g} of"
            f" {quantity(seen.cores, 'core')}; raise it (docker run --cpus {seen.cores}), or type:"
            f" export OMP_NUM_THREADS={seen.usable}"
        )


def _busy(seen: Circumstances) -> Iterator[str]:
    if seen.load is not None and seen.load > BUSY_SHARE * seen.cores:
        yield (
            f"other programs use the CPU (load average {seen.load:.1f} on"
            f" {quantity(seen.cores, 'core')}); to see which, type: top"
        )
        return
    rates = seen.products.by_threads
    if 2 not in rates or min(seen.physical or 2, seen.usable) < 2:
        return
    speedup = rates[2] / rates[1]
    if speedup < EXPECTED_SPEEDUP:
        yield (
            f"2 threads are only {speedup:.1f} times as fast as 1, so another program may use a"
            " core; to see which, type: top"
        )


def _slow_mkl(seen: Circumstances) -> Iterator[str]:
    if not seen.is_amd or seen.mkl is None or seen.mkl >= FIRST_MKL_WITHOUT_TRICK:
        return
    reached = seen.products.by_threads[1]
    if seen.peak and reached < SLOW_SHARE * seen.peak:
        yield (
            f"MKL takes a slow path on this AMD CPU ({reached / 1e9:.0f} of about"
            f" {seen.peak / 1e9:.0f} GFLOP/s on a core); type: {MKL_TRICK}"
        )


def _emulated_bf16(seen: Circumstances) -> Iterator[str]:
    if seen.emulates_bf16 and seen.products.bf16_slowdown > 1:
        yield (
            f"{describe_slowdown(seen.products.bf16_slowdown)}; train with --precision auto or fp32"
        )
