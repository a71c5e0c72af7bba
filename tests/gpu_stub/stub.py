"""The stub GPU: a CUDA that computes nothing, for tests on machines without a GPU.

``source`` holds its C code. As a script, this file runs a command on the stub:

    python -m tests.gpu_stub.stub vitcli train quickstart --device cuda --limit-batches 4
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from tests.gpu_stub.counting import KINDS
from tests.patience import HANG

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("source")
CALLERS = ("c10_cuda", "torch_cuda", "torch_cuda_linalg", "torch_python", "torch_cpu")
"""Libraries of torch that call CUDA; ``caffe2_nvrtc`` calls the driver only."""
CUDA_NAME = r"(?:__cuda|cuda|cublas|cudnn|cu[A-Z])\w+"
OTHERS = r"cuFile|cudnnGet(?:Version|CudartVersion|Property|(?:Last)?ErrorString)"
PRODUCTS = r"cublas\w*(?:[gG]emm|gemv|[dD]ot|trsm|getr[fsi]B|gelsB|geqrf)"
LAYERS = r"cudnn(?:Convolution|BatchNormalization|Activation|Softmax|Pooling)"

folder: Path | None = None
"""Where the stub is built and compilers keep their caches; ``conftest.py`` sets it for pytest."""


def why_not() -> str:
    if platform.system() != "Linux":
        return "no Linux"
    if missing := [name for name in ("gcc", "nm") if not shutil.which(name)]:
        return f"no {' and no '.join(missing)}"
    return "" if torch.version.cuda else "torch is built without CUDA"


def run_on_stub(
    code_or_args: str | Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run code for ``python -c``, or a command with its arguments, in a process on the stub GPU.

    The variable ``STUB_GPU_GIB`` is the size of the device memory; ``failing`` returns another one,
    which lets a call fail.
    """
    if isinstance(code_or_args, str):
        code_or_args = [sys.executable, "-c", code_or_args]
    options: dict[str, Any] = {"env": environment() | dict(env or {}), "timeout": timeout}
    return subprocess.run(code_or_args, cwd=cwd, capture_output=True, text=True, **options)


def ask_stub(code: str, *, cwd: Path) -> Any:
    """Run Python code on the stub; return what its last line prints, which is JSON.

    The process leaves at once. A regular end of Python stops autograd's threads wherever they are;
    a thread that is just freeing the last step then ends the process with an error.
    """
    leave = "\nimport os, sys; sys.stdout.flush(); sys.stderr.flush(); os._exit(0)"
    done = run_on_stub(code + leave, cwd=cwd, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def ask_once(name: str, code: str) -> Any:
    place = built().parent
    with FileLock(place / f"{name}.lock"):
        answer = place / f"{name}.json"
        if not answer.exists():
            answer.write_text(json.dumps(ask_stub(code, cwd=place)))
        return json.loads(answer.read_text())


def failing(kind: str, code: int, after: int) -> dict[str, str]:
    """Return the variable that lets call number ``after`` fail; 700 and 719 lose the device."""
    return {"STUB_GPU_FAIL": f"{KINDS.index(kind)}:{code}:{after}"}


def environment() -> dict[str, str]:
    library = built()
    caches = library.parent / "caches"
    return dict(os.environ) | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "VITCLI_OFFLINE": "1",
        "VITCLI_CACHE": str(caches / "vitcli"),
        "XDG_CACHE_HOME": str(caches),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TRITON_LIBCUDA_PATH": str(library.parent),
    }


def built() -> Path:
    global folder
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="gpu-stub-"))
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    with FileLock(folder / "build.lock"):
        if not library.exists():
            _build(library)
    return library


def _build(library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        place = Path(name)
        major, minor = (torch.version.cuda or "").split(".")[:2]
        options = ["-O1", "-fPIC", "-fvisibility=hidden", f"-I{SOURCE}"]
        options += [f"-DCUDA_VERSION={1000 * int(major) + 10 * int(minor)}"]
        _run("gcc", *options, "-c", *sorted(SOURCE.glob("*.c")), cwd=place)
        own = _run("nm", "--defined-only", *sorted(place.glob("*.o")), cwd=place)
        own_names = set(re.findall(rf" T ({CUDA_NAME})", own))
        (place / "rest.c").write_text(rest(needed_names() - own_names))
        _run("gcc", *options, "-c", "rest.c", cwd=place)
        objects = sorted(place.glob("*.o"))
        shared = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1"]
        _run("gcc", *shared, *objects, "-ldl", "-lpthread", cwd=place)
        (library.parent / "libcuda.so").symlink_to("libcuda.so.1")
        (place / "libcuda.so.1").rename(library)


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed_names() -> set[str]:
    libraries = Path(torch.__file__).parent / "lib"
    files = [libraries / f"lib{name}.so" for name in (*CALLERS, "caffe2_nvrtc")]
    symbols = _run("nm", "-D", "--undefined-only", *filter(Path.exists, files), cwd=libraries)
    found = set(re.findall(rf" [Uw] ({CUDA_NAME})", symbols))
    driver = Path(torch.__file__).parents[1] / "triton" / "backends" / "nvidia" / "driver.c"
    if driver.exists():
        names = re.findall(r"\b(cu[A-Z]\w+)\(", driver.read_text())
        found |= {name for name in names if not name.endswith("_t")}
    return {name for name in found if not re.match(OTHERS, name)}


def rest(names: set[str]) -> str:
    lines = ["#include <stdlib.h>", '#include "stub.h"']
    for name in sorted(names):
        if re.match(PRODUCTS, name):
            lines.append(f"COMPUTE({name}, CUBLAS_FAILED)")
        elif re.match(LAYERS, name):
            lines.append(f"COMPUTE({name}, CUDNN_FAILED)")
        elif re.fullmatch(r"cudnnCreate\w*Descriptor", name):
            lines.append(f"CREATE({name})")
        else:
            lines.append(f"ANSWER({name})")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m tests.gpu_stub.stub COMMAND [WORD ...]")
    try:
        sys.exit(subprocess.run(sys.argv[1:], env=environment()).returncode)
    except FileNotFoundError as error:
        sys.exit(f"no command {error.filename}")
