"""Choose the backend of a model, and compile the C files of ``core/ops/native``.

The C compiler of this machine compiles each file once and stores the library in the cache.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.ops import native
from vitcli.core.ops.backend import PLAIN, Backend, use_backend
from vitcli.core.ops.native.backend import native_backend
from vitcli.core.ops.native.functions import Kernels
from vitcli.runner.data.find import cache_root
from vitcli.runner.errors import ResourceError
from vitcli.runner.files import commit
from vitcli.runner.machine.processor import has_amx
from vitcli.runner.text import ignore_message

FOLDER = Path(native.__file__).parent
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-Wall", "-Wextra")


class NoKernelsError(Exception):
    """The native kernels cannot be used on this machine; the message says why."""


def choose_kernels(
    model: nn.Module,
    device: torch.device,
    autocast: torch.dtype | None,
    wanted: str = "auto",
    on_message: Callable[[str], None] = ignore_message,
) -> str:
    """Select the backend that computes the model; return its name, ``native`` or ``torch``.

    ``native`` has the kernels of ``core/ops/native``, for bf16 on a CPU with AMX. ``torch``
    computes bf16 attention on a CPU as two plain matrix products, because torch's fused kernel is
    slower there. Measured by experiments/speed/cpu_attention.py, results in
    experiments/results/speed.

    Raises:
        ResourceError: ``wanted`` is ``native``, and this machine cannot use it.
    """
    is_bf16 = device.type == "cpu" and autocast is torch.bfloat16
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.fused = not is_bf16
    try:
        if wanted != "torch" and is_bf16 and has_amx():
            use_backend(model, BACKENDS["native"]())
            return "native"
        if wanted == "native":
            raise NoKernelsError("native kernels need bf16 on a Linux CPU with AMX")
    except NoKernelsError as error:
        if wanted == "native":
            raise ResourceError(f"train.kernels=native cannot be used here: {error}") from error
        on_message(f"{error}; using torch's kernels, which are slower")
    use_backend(model, PLAIN)
    return "torch"


def find_compiler() -> str:
    """Return the path of ``$CC``, gcc or clang, whichever is found first.

    Raises:
        NoKernelsError: No compiler was found.
    """
    for name in (os.environ.get("CC", ""), "gcc", "clang"):
        if path := shutil.which(name):
            return path
    raise NoKernelsError("no C compiler (gcc or clang) was found")


@cache
def load_kernels() -> Kernels:
    """Return the native kernels, which are compiled when a model needs them.

    Raises:
        NoKernelsError: There is no compiler, or it does not run.
    """
    compiler = find_compiler()
    version = _run(compiler, "--version")

    def open_library(source: str, sizes: dict[str, int]) -> ctypes.CDLL:
        text = "".join((FOLDER / name).read_text() for name in ("amx.h", f"{source}.c"))
        macros = [f"-D{name}={size}" for name, size in sizes.items()]
        key = "\0".join([text, version, _cpu_flags(), torch.__version__, *FLAGS, *macros])
        path = (
            cache_root()
            / "kernels"
            / f"{source}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
        )
        if not path.exists():
            _compile(compiler, FOLDER / f"{source}.c", macros, path)
        return _open(path)

    return Kernels(open_library)


def _cpu_flags() -> str:
    """Return the features of this CPU, because different machines may share a cache."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("flags")), "")


def _compile(compiler: str, source: Path, macros: list[str], path: Path) -> None:
    """Compile a library without linking OpenMP, because it must share the threads of torch."""
    with tempfile.TemporaryDirectory() as folder:
        made, linked = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
        _run(compiler, *FLAGS, *macros, "-c", str(source), "-o", str(made))
        _run(compiler, "-shared", str(made), "-o", str(linked), "-lm")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            commit(path, linked.read_bytes())
        except OSError as error:
            raise NoKernelsError(f"{path.parent} cannot be written: {error.strerror}") from error


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoKernelsError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise NoKernelsError(f"{command[0]} failed: {lines[0].strip()}")
    return done.stdout


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernelsError(f"a compiled kernel cannot be loaded: {error}") from error
    if library.prepare():
        raise NoKernelsError("the operating system does not allow the registers of AMX")
    return library


BACKENDS: dict[str, Callable[[], Backend]] = {
    "torch": lambda: PLAIN,
    "native": lambda: native_backend(load_kernels()),
}
"""Functions that make a backend, by its stored name. They raise NoKernelsError."""
