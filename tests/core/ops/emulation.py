"""Emulation of AMX in C, to run the native backend on processors without AMX.

Instructions of AVX512-BF16 are emulated too if they are missing. All other instructions of AVX-512
are required.
"""

import hashlib
import platform
import shutil
from pathlib import Path

HEADER = Path(__file__).with_name("emulated_amx.h")
NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def why_not() -> str | None:
    """Return why this machine cannot emulate the native backend, or None if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "no Linux on x86-64"
    if not (shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler"
    flags = set(Path("/proc/cpuinfo").read_text().split())
    missing = [name for name in NEEDED if name not in flags]
    return f"the CPU has no {', '.join(missing)}" if missing else None


def write_compiler(folder: Path) -> Path:
    """Write a C compiler that includes the emulation before each source, and return its path.

    Its version contains the emulation, so the cache keeps its libraries apart from real ones.
    """
    real = shutil.which("gcc") or shutil.which("clang")
    seal = hashlib.sha256(HEADER.read_bytes()).hexdigest()
    path = folder / "cc-with-emulated-amx"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "emulated AMX {seal}"\n'
        f'exec {real} -include "{HEADER}" "$@"\n'
    )
    path.chmod(0o755)
    return path
