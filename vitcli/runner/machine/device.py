"""Device, precision and arithmetic of a run: what torch, CUDA, glibc and the CPU compute with."""

import ctypes
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import deterministic as filling

from vitcli.core.spec import ModelSpec
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.text import Listener, quantity
from vitcli.version import __version__, source_commit

LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables that keep torch and its libraries below the instructions of the processor."""
BELOW_AVX512 = ("NO AVX", "DEFAULT", "AVX2")
"""Names that torch gives to instructions of x86 processors below AVX-512."""
EMULATED = "this CPU emulates bf16, which is seldom faster than fp32 and may be far slower"


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


def warn_if_emulated(
    precision: str, device_name: str, on_message: Listener, instead: str = "type --precision fp32"
) -> None:
    is_on_cpu = precision == "bf16" and pick_device(device_name).type == "cpu"
    if is_on_cpu and not computes_bf16(this_processor()):
        on_message(f"warning: {EMULATED}; {instead}")


def cpu_kind() -> str:
    """Return ``amx``, ``avx512``, ``avx2``, ``neon`` or, for any other CPU, ``other``.

    ``ATEN_CPU_CAPABILITY=avx2`` makes every x86 processor an ``avx2`` one.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    kind = torch.backends.cpu.get_cpu_capability().lower()
    if kind == "avx512" and platform.system() == "Linux" and this_processor().amx:
        return "amx"
    return kind if kind in ("avx512", "avx2") else "other"


def cpu_limits() -> str:
    """Return the ``LIMITS`` that are set, such as ``ATEN_CPU_CAPABILITY=avx2``; else nothing."""
    return " ".join(f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name))


DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
TF32_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs with TF32."""


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of this name; ``auto`` is the first available of cuda, mps and cpu.

    On CUDA, this also forbids TF32 until ``arithmetic`` allows it.
    """
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    try:
        device = torch.device(present[0] if name == "auto" else name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: write cpu, cuda, cuda:1, mps or auto") from error
    index = device.index or 0
    absent = device.type == "cuda" and index >= torch.cuda.device_count()
    if device.type not in present or absent:
        raise ResourceError(
            f"--device {name}: not on this machine (available: {', '.join(present)})"
        )
    if device.type == "cuda":
        set_cuda_defaults()
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Return the autocast type; None is fp32 or tf32."""
    return DTYPES.get(name_precision(name, device))


def name_precision(name: str, device: torch.device) -> str:
    """Return the precision of a training; ``auto`` is bf16 where the hardware is fast in it."""
    if name == "auto":
        return "bf16" if is_fast_in_bf16(device) else "fp32"
    if name not in (*DTYPES, "tf32"):
        raise ConfigError(f"precision {name}: write fp32, tf32, bf16, fp16 or auto")
    if name in ("fp16", "tf32") and device.type != "cuda":
        raise ConfigError(
            f"precision {name} needs a CUDA device, not {device.type}; take bf16 or fp32"
        )
    if name == "tf32" and torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
        raise ConfigError(
            f"precision tf32: {torch.cuda.get_device_name(device)} does not compute in it; take"
            " fp32"
        )
    return name


def move_module(module: nn.Module, device: torch.device, spec: ModelSpec) -> nn.Module:
    if device.type == "cuda" and spec.is_convolutional:
        module = module.to(memory_format=torch.channels_last)
    return module.to(device)


def is_fast_in_bf16(device: torch.device) -> bool:
    """Return whether ``auto`` is bf16 on a device: of CPUs, on x86 ones that compute it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpu = this_processor()
    return device.type == "cpu" and computes_bf16(cpu) and (cpu.amx or cpu.avx512_bf16)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def hardware(device: torch.device) -> str:
    """Return the name of a device for tables, with what limits it: ``AMD EPYC, 2 threads``."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    parts = [cpu_name(), cpu_limits(), quantity(threads, "thread")]
    return ", ".join(filter(None, parts))


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions and hardware for meta.json, as needed to reproduce a run bit by bit."""
    commit, dirty = source_commit()
    return {
        "vitcli": __version__,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "hardware": hardware(device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACE = ":4096:8"
"""Workspaces with which cuBLAS is deterministic."""
REFUSALS = ("deterministic implementation", CUBLAS_VARIABLE)
"""Parts of torch's messages that an operation has no deterministic kernel."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**30, 2**25
"""Sizes in bytes of the largest blocks that come from the heap, which the process keeps. glibc
before 2.35 refuses the first one."""


@contextmanager
def chosen_kernels(device: torch.device, deterministic: bool) -> Iterator[None]:
    """Use deterministic kernels in the block; otherwise let cuDNN try which kernels are fastest."""
    if device.type != "cuda":
        yield
        return
    algorithms = _deterministic_algorithms() if deterministic else nullcontext()
    cudnn = torch.backends.cudnn
    with _changed(cudnn, benchmark=not deterministic, deterministic=deterministic), algorithms:
        yield


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    is_ours = CUBLAS_VARIABLE not in os.environ
    os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True)
    try:
        with _changed(filling, fill_uninitialized_memory=False):  # no tensor is read unwritten
            yield
    except RuntimeError as error:
        if not any(part in str(error) for part in REFUSALS):
            raise
        reason = str(error).partition(", but you set")[0].partition("\n")[0]
        raise ConfigError(
            f"train.deterministic: {reason}; type -s train.deterministic=false, or change the part"
            " of the experiment that needs this operation"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before)
        if is_ours:
            del os.environ[CUBLAS_VARIABLE]


@contextmanager
def _changed(owner: Any, **values: bool) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Compute fp32 products and convolutions in TF32 in the block, if the precision is tf32."""
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    _allow_tf32("high", True)
    try:
        yield
    finally:
        _allow_tf32(*before)


def set_cuda_defaults() -> None:
    """Compute convolutions in full fp32, and attention without cuDNN.

    torch's default for convolutions on CUDA is TF32. For attention it is cuDNN on Hopper GPUs. Its
    gradient of the queries can be NaN where the log of a row's sum of exponentials is below -88, if
    the number of keys is 64, or 64 more than a multiple of 128
    (https://github.com/pytorch/pytorch/issues/196678). Models without LayerNorm get there.
    """
    _allow_tf32("highest", False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _allow_tf32(products: str, convolutions: bool) -> None:
    # torch 2.9 to 2.11 warn about these settings. The new ones cannot be mixed with torch's own use
    # of these.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory in this process. Return whether it does.

    By default glibc returns the memory of every large tensor to the system and requests it again.
    On a CPU this causes thousands of page faults per training step.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    keeps_blocks = any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST)
    return bool(mallopt(M_TRIM_THRESHOLD, -1)) and keeps_blocks
