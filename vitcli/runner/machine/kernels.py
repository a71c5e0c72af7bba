"""Choose the backend of a model, and compile the C files of ``core/ops/native``.

The C compiler of this machine compiles each file once and stores the library in the cache.
Measured by ``vitcli bench train`` and experiments/speed; results in docs/results/speed.md.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from vitcli.core.nn.attention import SelfAttention
from vitcli.core.ops import native
from vitcli.core.ops.backend import PLAIN, Backend, UsesBackend, use_backend
from vitcli.core.ops.native.compiled import Kernels
from vitcli.plugin import load_target
from vitcli.runner.data.find import cache_root
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.files import commit, read_bounded, scratch_folder
from vitcli.runner.machine.device import cpu_kind, this_processor
from vitcli.runner.text import Listener, ignore_message

FOLDER = Path(native.__file__).parent
FLAGS = ("-O3", "-fopenmp", "-fPIC", "-Wall", "-Wextra")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")))
SIMD = {
    "amx": ("-DLANES=16", "-mprefer-vector-width=512", *AVX512),
    "avx512": ("-DLANES=16", "-mprefer-vector-width=512", *AVX512),
    "avx2": ("-DLANES=8", *AVX2),
    "neon": ("-DLANES=4",),
}
"""Kind of CPU -> the compiler's flags for fp32 kernels. A row's key is a result of ``cpu_kind``."""
HALF = (*SIMD["avx512"], "-mavx512bf16", "-DHALF")
"""The compiler's flags for bf16 kernels on a CPU with AVX512-BF16."""
MAX_LIBRARY = 1 << 26
"""Largest size of a compiled library in bytes. They have about 60,000."""


class NoKernelsError(Exception):
    """The native kernels cannot be used on this machine; the message says why."""


def choose_kernels(
    model: nn.Module,
    device: torch.device,
    autocast: torch.dtype | None,
    wanted: str = "auto",
    on_message: Listener = ignore_message,
) -> str:
    """Select the backend that computes the model; return its name, ``native`` or ``torch``.

    ``native`` has the kernels of ``core/ops/native`` for this CPU and precision. If torch computes
    bf16 attention on a CPU, it does so as two plain matrix products, because torch's fused kernel
    is slower there. Measured by experiments/speed/cpu_attention.py, results in
    experiments/results/speed.
    """
    is_bf16 = device.type == "cpu" and autocast is torch.bfloat16
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.attend.fused = not is_bf16
    try:
        backend = native_backend_of(cpu_kind(), autocast) if device.type == "cpu" else None
        has_parts = any(isinstance(part, UsesBackend) for part in model.modules())
        if wanted != "torch" and backend and has_parts:
            use_backend(model, BACKENDS[backend]())
            return "native"
        if wanted == "native":
            raise NoKernelsError(
                "native kernels need Linux and fp32 on a CPU with AVX2, AVX-512 or NEON,"
                " or bf16 on a CPU with AMX or AVX512-BF16"
            )
    except NoKernelsError as error:
        if wanted == "native":
            raise ResourceError(f"train.kernels=native cannot be used here: {error}") from error
        on_message(f"{error}; using torch's kernels, which are slower")
    use_backend(model, PLAIN)
    return "torch"


def native_backend_of(kind: str, autocast: torch.dtype | None) -> str | None:
    if platform.system() != "Linux":
        return None
    if autocast is torch.bfloat16:
        if kind == "avx512" and this_processor().avx512_bf16:
            return "half"
        return "amx" if kind == "amx" else None
    return "simd" if autocast is None and kind in SIMD else None


def find_compiler() -> str:
    """Return the path of ``$CC``, gcc or clang, whichever is found first."""
    for name in (os.environ.get("CC", ""), "gcc", "clang"):
        if path := shutil.which(name):
            return path
    raise NoKernelsError("no C compiler (gcc or clang) was found")


@cache
def load_kernels(folder: str, *flags: str) -> Kernels:
    """Return the kernels of a folder, which are compiled when a model needs them."""
    compiler = find_compiler()
    version = _run(compiler, "--version")
    texts = [path.read_text() for path in sorted((FOLDER / folder).glob("*.[ch]"))]

    def open_library(source: str, sizes: dict[str, int]) -> ctypes.CDLL:
        options = [*FLAGS, *flags, *(f"-D{name}={size}" for name, size in sizes.items())]
        # The features of the CPU, because different machines may share a cache.
        parts = [*texts, version, _cpu_flags(), torch.__version__, *options]
        key = hashlib.sha256("\0".join(parts).encode()).digest()
        path = _private(cache_root() / "kernels") / f"{source}-{key.hex()[:16]}.so"
        if not _is_sealed(path, key):
            _store(path, _seal(_compile(compiler, FOLDER / folder / f"{source}.c", options), key))
        return _open(path)

    return Kernels(open_library)


def _cpu_flags() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("flags")), "")


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise NoKernelsError(f"{folder} belongs to another user, who could change the kernels")
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise NoKernelsError(f"{folder} cannot be written: {error.strerror}") from error
    return folder


def _seal(library: bytes, key: bytes) -> bytes:
    # The loader ignores bytes after the end of a library.
    return library + hashlib.sha256(key + library).digest()


def _is_sealed(path: Path, key: bytes) -> bool:
    try:
        content = read_bounded(path, MAX_LIBRARY)
    except (OSError, ValueError):
        return False
    return content == _seal(content[: -hashlib.sha256().digest_size], key)


def _store(path: Path, content: bytes) -> None:
    try:
        commit(path, content)
    except ConfigError as error:
        raise NoKernelsError(str(error)) from error
    except OSError as error:
        raise NoKernelsError(f"{path.parent} cannot be written: {error.strerror}") from error


def _compile(compiler: str, source: Path, options: list[str]) -> bytes:
    """Compile a library without linking OpenMP, because it must share the threads of torch."""
    with scratch_folder() as folder:
        made, linked = folder / "kernel.o", folder / "kernel.so"
        _run(compiler, *options, "-c", str(source), "-o", str(made))
        _run(compiler, "-shared", str(made), "-o", str(linked), "-lm")
        return linked.read_bytes()


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
    if hasattr(library, "prepare") and library.prepare():
        raise NoKernelsError("the operating system does not allow the registers of AMX")
    return library


AMX_BACKEND = "vitcli.core.ops.native.amx.backend:amx_backend"
SIMD_BACKEND = "vitcli.core.ops.native.simd.backend:simd_backend"
BACKENDS: dict[str, Callable[[], Backend]] = {
    "torch": lambda: PLAIN,
    "amx": lambda: load_target(AMX_BACKEND)(load_kernels("amx", "-march=native")),
    "half": lambda: load_target(SIMD_BACKEND)(load_kernels("simd", *HALF)),
    "simd": lambda: load_target(SIMD_BACKEND)(load_kernels("simd", *SIMD[cpu_kind()])),
}
"""Functions that make a backend. They raise NoKernelsError."""
