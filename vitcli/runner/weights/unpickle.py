"""A child process that reads one stranger's ``.pt`` file, under limits, and writes safetensors.

    python -m vitcli.runner.weights.unpickle FILE TARGET

The only place where a pickle is read. ``weights_only=True`` lets it build tensors and containers,
and has been got round before (CVE-2025-32434, CVE-2026-24747); so it runs in a process of its own
that may use little memory, time and disk, and there is no other way in where this one fails. What
it has to say is its last line on stderr; its exit code is 0 or 4.
"""

import os
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
PLACES = ("state_dict", "model_state_dict", "model", "ema", "net", "weights")
"""Where training programs put the weights in what they save."""


def main(source: Path, target: Path) -> None:
    import safetensors.torch
    import torch

    with source.open("rb") as file:
        limit(size_of(file))
        check_archive(file)
        file.seek(0)
        saved = torch.load(file, map_location="cpu", weights_only=True)
    state = find_state(saved)
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
    safetensors.torch.save_file(tensors, target)


def size_of(file: IO[bytes]) -> int:
    """Bytes of a regular file; ValueError where it is none, or too large."""
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("not a regular file")
    if facts.st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 30} GiB")
    return facts.st_size


def check_archive(file: IO[bytes]) -> None:
    """Make sure that it is what ``torch.save`` writes, with nothing compressed in it.

    Raises:
        ValueError: It is not.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError("not a file of torch.save (since torch 1.6 that is a ZIP)") from error
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} parts")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("compressed parts, which torch.save never writes")
    if sum(entry.file_size for entry in entries) > size_of(file):
        raise ValueError("its parts are larger than itself")
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
        raise ValueError("not one data.pkl of ordinary size")


def limit(size: int) -> None:
    """Processor time, and memory and disk for a few copies of so many bytes beyond what is used."""
    memory = Path("/proc/self/statm")  # Linux only; elsewhere there is no such limit
    used = int(memory.read_text().split()[0]) * resource.getpagesize() if memory.exists() else 0
    for kind, most in (
        (resource.RLIMIT_AS, used + 4 * size + (256 << 20) if used else resource.RLIM_INFINITY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 2 * size + (1 << 20)),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def find_state(saved: Any, depth: int = 0) -> dict[str, Any]:
    """The mapping of names to tensors in what was saved.

    Raises:
        ValueError: There is none.
    """
    import torch

    if not isinstance(saved, Mapping):
        raise ValueError(f"it holds a {type(saved).__name__}, not a dict of tensors")
    if saved and all(isinstance(value, torch.Tensor) for value in saved.values()):
        if not all(isinstance(name, str) for name in saved):
            raise ValueError("its tensors have names that are no text")
        return dict(saved)
    inside = [saved[place] for place in PLACES if isinstance(saved.get(place), Mapping)]
    if not inside or depth == MAX_DEPTH:
        keys = ", ".join(sorted(str(key)[:40] for key in saved)[:6])
        raise ValueError(f"no dict of tensors in it (it has: {keys or 'nothing'})")
    return find_state(inside[0], depth + 1)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as problem:  # of whatever kind: the file is refused, and nothing else happens
        kind = "" if type(problem) is ValueError else f"{type(problem).__name__}: "
        reason = str(problem).partition("\n")[0][:300]
        print(f"{kind}{reason}", file=sys.stderr)  # noqa: T201
        sys.exit(REFUSED)
