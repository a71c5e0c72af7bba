"""The kind of a CPU: the widest instructions that torch uses on it."""

import os
import platform

import torch

LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that keep torch and its libraries below the instructions of the processor."""


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


def has_avx512_bf16() -> bool:
    """Return whether the CPU supports AVX512-BF16."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def cpu_limits() -> str:
    """Return the ``LIMITS`` that are set, such as ``ATEN_CPU_CAPABILITY=avx2``; else nothing."""
    return " ".join(f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name))
