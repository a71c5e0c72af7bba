"""The kind of a CPU, and whether it computes matrix products in bf16."""

import os
import platform
from dataclasses import dataclass

import torch

LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that keep torch and its libraries below the instructions of the processor."""
BELOW_AVX512 = ("NO AVX", "DEFAULT", "AVX2")
"""Names that torch gives to instructions of x86 processors below AVX-512."""


@dataclass(frozen=True, kw_only=True)
class Processor:
    """What decides whether torch computes bf16 with instructions of the CPU."""

    machine: str
    """The architecture, such as ``x86_64`` or ``aarch64``."""
    capability: str
    """The instructions that torch uses, such as AVX2; ``ATEN_CPU_CAPABILITY`` limits them."""
    onednn_bf16: bool
    """Whether oneDNN computes bf16 products; ``ONEDNN_MAX_CPU_ISA`` limits its instructions."""
    avx512_bf16: bool = False
    amx: bool = False


def this_processor() -> Processor:
    """Return what torch reports about the CPU of this machine."""
    onednn = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)
    return Processor(
        machine=platform.machine(),
        capability=torch.backends.cpu.get_cpu_capability(),
        onednn_bf16=bool(onednn()),
        avx512_bf16=bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()),
        amx=bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)()),
    )


def computes_bf16(cpu: Processor) -> bool:
    """Return whether the CPU computes bf16 products in hardware, rather than emulating them."""
    if cpu.machine in ("aarch64", "arm64"):
        return cpu.onednn_bf16
    in_hardware = cpu.amx or cpu.avx512_bf16
    return in_hardware and cpu.onednn_bf16 and cpu.capability not in BELOW_AVX512


def prefers_bf16(cpu: Processor) -> bool:
    """Return whether ``--precision auto`` is bf16: on x86 processors that compute it."""
    return computes_bf16(cpu) and (cpu.amx or cpu.avx512_bf16)


def cpu_kind() -> str:
    """Return ``amx``, ``avx512``, ``avx2``, ``neon`` or, for any other CPU, ``other``.

    ``ATEN_CPU_CAPABILITY=avx2`` makes every x86 processor an ``avx2`` one.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    kind = torch.backends.cpu.get_cpu_capability().lower()
    if kind == "avx512" and has_amx():
        return "amx"
    return kind if kind in ("avx512", "avx2") else "other"


def has_amx() -> bool:
    """Return whether CPU and operating system support AMX bf16 tiles."""
    check = getattr(torch.cpu, "_is_amx_tile_supported", bool)
    return platform.system() == "Linux" and platform.machine() == "x86_64" and bool(check())


def cpu_limits() -> str:
    """Return the ``LIMITS`` that are set, such as ``ATEN_CPU_CAPABILITY=avx2``; else nothing."""
    return " ".join(f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name))
