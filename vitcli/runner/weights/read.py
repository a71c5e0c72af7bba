"""The tensors of a weights file, which may be hostile."""

import os
import subprocess
import sys
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitcli.runner.errors import InputError
from vitcli.runner.files import scratch_folder
from vitcli.runner.weights.unpickle import SECONDS
from vitcli.version import PACKAGE


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file under their names in the file.

    Raises:
        InputError: The file cannot be read, or is refused.
    """
    if file.is_dir():
        raise InputError(f"{file}: a folder, not a weights file")
    if not file.is_file():
        raise InputError(f"{file}: not a file")
    if not file.stat().st_size:
        raise InputError(f"{file}: the file is empty")
    if file.suffix == ".safetensors":
        return _load(file, file)
    with scratch_folder() as scratch:
        target = scratch / "weights.safetensors"
        _unpickle(file, target)
        return _load(target, file)


def read_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of an undamaged safetensors file; {} for other files."""
    if file.suffix != ".safetensors":
        return {}
    with safe_open(file, framework="pt") as content:
        return dict(content.metadata() or {})


def _load(path: Path, named: Path) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{named}: cut short or no safetensors file ({error})") from error


def _unpickle(file: Path, target: Path) -> None:
    package = str(PACKAGE.parent)
    command = [
        sys.executable,
        "-P",
        "-m",
        "vitcli.runner.weights.unpickle",
        str(file.resolve()),
        str(target),
    ]
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=3 * SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{file}: refused: it took more than {3 * SECONDS} s to read") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines and done.returncode > 0 else "it used too much memory or time"
        raise InputError(f"{file}: refused: {reason}")
