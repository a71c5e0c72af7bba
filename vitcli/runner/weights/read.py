"""The tensors of a weights file, which may be hostile."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitcli.runner.child import child_environment, python_command
from vitcli.runner.errors import InputError
from vitcli.runner.files import scratch_folder
from vitcli.runner.text import ignore_message, one_line
from vitcli.runner.weights.names import naming_of
from vitcli.runner.weights.unpickle import NOTE, SECONDS

MAX_NOTE = 200
"""Number of characters of a note on the content of a file."""


def read_tensors(
    file: Path, on_message: Callable[[str], None] = ignore_message
) -> dict[str, Tensor]:
    """Return the tensors of the model in a file under their names in the file.

    Args:
        on_message: Receives a note if the file holds other weights or tensors, too.
    """
    tensors = _read(file, on_message)
    naming = naming_of(tensors)
    if naming.several:
        prefixes = one_line(", ".join(naming.several), MAX_NOTE)
        raise InputError(f"{file} holds several models ({prefixes}); save the weights of one")
    inside = {name: each for name, each in tensors.items() if name.startswith(naming.prefix)}
    others = [name for name in tensors if name not in inside]
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        name, prefix = one_line(others[0], 60), one_line(naming.prefix, 60)
        verb = "are" if others[1:] else "is"
        on_message(
            f"note: {file}: {name}{more} {verb} left out: the model's names start with {prefix}"
        )
    return inside


def _read(file: Path, on_message: Callable[[str], None]) -> dict[str, Tensor]:
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
        if note := read_metadata(target).get(NOTE):
            on_message(f"note: {file}: {one_line(note, MAX_NOTE)}")
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
    words = "-m", "vitcli.runner.weights.unpickle", str(file.resolve()), str(target)
    try:
        done = subprocess.run(
            python_command(*words),
            env=child_environment() | {"OMP_NUM_THREADS": "1"},
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
