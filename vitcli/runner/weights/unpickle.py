"""A child process that converts one untrusted ``.pt`` file to safetensors, under limits.

    python -m vitcli.runner.weights.unpickle FILE TARGET

A ``.pt`` file is a pickle. vitcli reads pickles here and in ``runner/data/readers.py``, which reads
only published files of known MD5. ``weights_only=True`` restricts the pickle to tensors and
containers, but this restriction has been bypassed before (CVE-2025-32434, CVE-2026-24747).
Therefore the file is read in a process of its own with limited memory, time and disk, and there is
no fallback. The exit code is 0, or 4 if the file is refused. The last line on stderr then gives the
reason for the refusal.
"""

import argparse
import os
import re
import resource
import stat
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

MAX_BYTES = 4 << 30
MAX_ENTRIES = 20_000
MAX_PICKLE = 16 << 20
MAX_DEPTH = 4
SECONDS = 60
REFUSED = 4
ZIP_START = b"PK"
PICKLE_START = 0x80
OLD_START = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
"""The number that torch.save wrote first before it wrote a ZIP."""
PICKLE_PROTOCOLS = {bytes([number]) for number in range(2, 6)}
AVERAGED = re.compile(r"(^|[._])(ema|teacher)([._]|$)")
"""The names of averaged weights: an exponential moving average, or the teacher of a student."""
WEIGHT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "weights",
    "model_state",
    "params",
    "state",
    "student",
)
"""Keys under which training programs save weights that are not averaged."""
NOTE = "note"
"""Key in the metadata of the converted file: which weights were read where there are several."""
SAVE = "torch.save(model.state_dict(), 'weights.pt')"
"""What to type in Python to save the weights of a model alone."""


def main(source: Path, target: Path) -> None:
    """Read a file of ``torch.save`` and write its tensors to ``target``."""
    import safetensors.torch
    import torch

    with source.open("rb") as file:
        limit_resources(regular_file_size(file))
        check_archive(file)
        file.seek(0)
        with torch.serialization.safe_globals([argparse.Namespace]):  # holds values, runs nothing
            try:
                saved = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                if type(error).__name__ != "UnpicklingError":
                    raise
                raise ValueError(describe_objects(file)) from error
    state, note = find_state(saved)
    for name, value in state.items():
        if value.layout != torch.strided:
            raise ValueError(f"{name[:60]} is sparse; save it dense")
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
    safetensors.torch.save_file(tensors, target, {NOTE: note})


def regular_file_size(file: IO[bytes]) -> int:
    """Return the size of a regular file in bytes."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 30} GiB")
    return status.st_size


def check_archive(file: IO[bytes]) -> None:
    """Check that a file is an archive of ``torch.save`` without compressed or damaged parts.

    torch itself does not compare the checksums.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError(describe_start(file)) from error
    if any(entry.filename.endswith("/archive_format") for entry in entries):
        raise ValueError("a program of torch.export (pt2), which has no state dict")
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} parts")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it has compressed parts, which torch.save never writes")
    if sum(entry.file_size for entry in entries) > regular_file_size(file):
        raise ValueError("its parts are larger than the file")
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
        raise ValueError(f"it must hold exactly one data.pkl, of at most {MAX_PICKLE >> 20} MiB")
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        raise ValueError(f"damaged ({error}); copy the file again") from error
    if damaged:
        raise ValueError(
            f"{damaged[:60]} fails its checksum; copy the file again,"
            " or save it again after torch.serialization.set_crc32_options(True)"
        )


def describe_start(file: IO[bytes]) -> str:
    """Return what a file that is no ZIP archive is, judged by its first bytes."""
    file.seek(0)
    start = file.read(32)
    if not start:
        return "the file is empty"
    if start.startswith(ZIP_START):
        return "the file is cut short; copy it again"
    if start[0] == PICKLE_START and start[1:2] in PICKLE_PROTOCOLS:
        if OLD_START not in start:
            return f"a pickle, but not one of torch.save; save the weights with {SAVE}"
        return (
            "a file of torch.save is a ZIP since torch 1.6; convert this older one:"
            " torch.save(torch.load(OLD, weights_only=True), NEW)"
        )
    if start[8:9] == b"{":  # after the length of its header in 8 bytes
        return "it looks like a safetensors file; let its name end with .safetensors"
    return "not a weights file (.pt or .safetensors)"


def limit_resources(size: int) -> None:
    """Limit processor time; limit memory and disk space to a few times ``size`` bytes."""
    memory = Path("/proc/self/statm")  # Linux only: other systems do not limit memory
    used = int(memory.read_text().split()[0]) * resource.getpagesize() if memory.exists() else 0
    for kind, most in (
        (resource.RLIMIT_AS, used + 4 * size + (256 << 20) if used else resource.RLIM_INFINITY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 2 * size + (1 << 20)),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def describe_objects(file: IO[bytes]) -> str:
    """Return why a pickle holds more than tensors, and what to save instead.

    The pickle is only disassembled, and none of its instructions is executed.
    """
    import torch

    file.seek(0)
    try:
        names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # the pickle is not one that torch.save writes
        names = []
    if not names:
        return "its pickle is damaged, or has instructions that torch.save does not write"
    is_model = any(name.startswith("torch.nn.modules.") for name in names)
    found = "a model object" if is_model else f"a Python object ({names[0][:100]})"
    return f"it holds {found}; save model.state_dict(): {SAVE}"


def find_state(saved: Any, depth: int = 0) -> tuple[dict[str, Any], str]:
    """Return the mapping of names to tensors in a saved object, and a note on the choice.

    Averaged weights come before others, as when timm loads a checkpoint. The note names what was
    read and what was not. It is empty if there was no choice.
    """
    import torch

    if not isinstance(saved, Mapping):
        raise ValueError(f"it holds a {type(saved).__name__}, not a dict of tensors")
    if saved and all(isinstance(value, torch.Tensor) for value in saved.values()):
        if not all(isinstance(name, str) for name in saved):
            raise ValueError("the names of its tensors are not text")
        return dict(saved), ""
    keys = weight_keys(saved)
    others = [key for key, value in saved.items() if not isinstance(value, torch.Tensor)]
    if len(others) < len(saved) and not keys:
        kind = type(saved[others[0]]).__name__
        raise ValueError(f"{str(others[0])[:40]!r} is no tensor ({kind}); leave it out")
    if not keys or depth == MAX_DEPTH:
        names = ", ".join(sorted(str(key)[:40] for key in saved)[:6])
        raise ValueError(f"it holds no dict of tensors (its keys: {names or 'none'})")
    return first_state(saved, keys, depth)


def weight_keys(saved: Mapping[Any, Any]) -> list[str]:
    """Return the keys of an object under which weights may be, averaged ones first."""
    averaged = [key for key in saved if isinstance(key, str) and AVERAGED.search(key)]
    keys = [*averaged, *(key for key in WEIGHT_KEYS if key in saved)]
    return [key for key in keys if isinstance(saved[key], Mapping)]


def first_state(
    saved: Mapping[str, Any], keys: list[str], depth: int
) -> tuple[dict[str, Any], str]:
    """Return the first mapping of names to tensors below ``keys``, and a note on the choice."""
    problems = []
    for place, key in enumerate(keys):
        try:
            state, note = find_state(saved[key], depth + 1)
        except ValueError as error:
            problems.append(error)
            continue
        left = ", ".join(repr(other[:40]) for other in keys[place + 1 :])
        kind = "the averaged weights" if AVERAGED.search(key) else "the weights"
        return state, note or (f"{kind} {key[:40]!r} are read, not {left}" if left else "")
    raise problems[0]


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as problem:  # every exception means: refuse the file
        kind = "" if type(problem) is ValueError else f"{type(problem).__name__}: "
        reason = str(problem).partition("\n")[0][:300]
        print(f"{kind}{reason}", file=sys.stderr)  # noqa: T201
        sys.exit(REFUSED)
