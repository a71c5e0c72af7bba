"""Whether a CPU computes matrix products in bf16, and whether ``--precision auto`` uses that."""

import platform
from dataclasses import dataclass

import torch

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
    """Return whether ``--precision auto`` is bf16; AVX512-BF16 without AMX stays in fp32."""
    return computes_bf16(cpu) and cpu.amx
