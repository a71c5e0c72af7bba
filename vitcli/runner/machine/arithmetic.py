"""Global settings that decide how a device computes: of torch for CUDA, of glibc for a CPU."""

import ctypes
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import deterministic as filling

from vitcli.runner.errors import ConfigError

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
