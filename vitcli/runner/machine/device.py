"""Device and precision of a run, and facts about the machine."""

import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitcli.core.spec import ModelSpec
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.machine.arithmetic import set_cuda_defaults
from vitcli.runner.machine.processor import cpu_limits, prefers_bf16, this_processor
from vitcli.runner.text import quantity
from vitcli.version import __version__, source_commit

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
    """Return the precision of a training: fp32, tf32, bf16 or fp16.

    ``auto`` is bf16 where the hardware is fast in it, and fp32 elsewhere.
    """
    if name == "auto":
        return "bf16" if is_fast_in_bf16(device) else "fp32"
    if name not in (*DTYPES, "tf32"):
        raise ConfigError(f"precision {name}: write fp32, tf32, bf16, fp16 or auto")
    if name in ("fp16", "tf32") and device.type != "cuda":
        raise ConfigError(
            f"precision {name} needs a CUDA device, not {device.type}; type --precision bf16 or"
            " --precision fp32"
        )
    if name == "tf32" and torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
        raise ConfigError(
            f"precision tf32: {torch.cuda.get_device_name(device)} does not compute in it; type"
            " --precision fp32"
        )
    return name


def move_module(module: nn.Module, device: torch.device, spec: ModelSpec) -> nn.Module:
    if device.type == "cuda" and spec.is_convolutional:
        module = module.to(memory_format=torch.channels_last)
    return module.to(device)


def is_fast_in_bf16(device: torch.device) -> bool:
    """Return whether ``auto`` is bf16 on a device."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and prefers_bf16(this_processor())


def cpu_name() -> str:
    """Return the model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def hardware(device: torch.device) -> str:
    """Return the name of a device for tables, such as ``AMD EPYC, 2 threads``.

    Variables that limit the instructions of the CPU are named, because they change the speed.
    """
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
