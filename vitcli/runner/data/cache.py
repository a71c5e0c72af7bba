"""The cache of decoded arrays: one safetensors file per data set and size, with a SHA-256."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_READERS
from vitcli.plugin import load_target
from vitcli.runner.data.find import cache_root, download_folder, own_path
from vitcli.runner.files import commit_json, file_lock
from vitcli.runner.text import Listener, printable

FORMAT = 15
"""Raised when a file of pictures or arrays is decoded to other pixels or facts than before."""
SPLITS = ("train", "test", "val")


@dataclass(frozen=True)
class Decoded:
    """A data set in canonical order, and what is wrong with its files."""

    data: DataSet
    unreadable: tuple[str, ...] = ()
    """Name and reason of each picture that was left out, because it cannot be read."""
    same: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Row of ``SAME`` -> the names of two pictures of a folder that look the same."""
    kept_area: float = 1.0
    notes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Notes of ``notes_on``, with the fields that would read what they name."""
    unusable_extras: Mapping[str, str] = field(default_factory=dict)
    """Row of ``EXTRAS`` -> why the folder has no tensor of it, although it has such files."""
    unlinked: tuple[str, ...] = ()
    """Classes whose pictures that look alike are on both sides of the held-out fifth."""


def array_file(name: str, size: tuple[int, int] | None, data_dir: Path | None = None) -> Path:
    """Return the cache file of a data set; ``data_dir`` is the new place of own pictures."""
    if path := own_path(name, data_dir):
        prefix = name.partition(":")[0]
        path = path.resolve() if DATA_READERS[prefix].is_path else path
        where = str(path).encode(errors="surrogateescape")
        name = f"{prefix}-{hashlib.sha256(where).hexdigest()[:12]}"
    suffix = f"{size[0]}x{size[1]}" if size else "native"
    return cache_root() / "arrays" / f"{name}-{suffix}.safetensors"


def cached_files(name: str) -> tuple[Path, ...]:
    native = array_file(name, None)
    files = sorted(native.parent.glob(native.name.replace("-native", "-*")))
    return tuple(path for path in files if _sidecar(path).is_file())


def files_in_cache(name: str) -> list[Path]:
    cached = [file for path in cached_files(name) for file in (path, _sidecar(path))]
    folders, path = [download_folder(name)], own_path(name)
    if path and (row := DATA_READERS[name.partition(":")[0]]).kept:
        folders = load_target(row.kept)(path if row.is_path else str(path))
    found: list[Path] = []
    for folder in folders:  # what a link leads to is a person's
        found += [folder] if folder.is_symlink() else sorted(folder.rglob("*"))
    return cached + [path for path in found if path.is_symlink() or path.is_file()]


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json")


def load_or_build(
    path: Path, parts: object, build: Callable[[], Decoded], on_message: Listener
) -> Decoded:
    """Load the arrays of a key from ``path``; otherwise build them and cache them there.

    The key is the text of ``parts``, on which the arrays depend. A damaged file is rebuilt. If the
    cache cannot be written, the arrays are returned anyway.
    """
    key = hashlib.sha256(repr((FORMAT, parts)).encode()).hexdigest()
    with _lock(path, on_message) as writable:
        if decoded := _load(path, key, on_message):
            return decoded
        decoded = build()
        if writable:
            _keep(path, key, decoded, on_message)
        return decoded


@contextlib.contextmanager
def _lock(path: Path, on_message: Listener) -> Iterator[bool]:
    """Let one process decode while others wait; yield whether the cache can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = file_lock(path.with_name(f"{path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_message(f"waiting for another process that prepares {printable(path)}")
            lock.acquire()
    except OSError as error:
        on_message(f"the cache {printable(path.parent)} cannot be written: {printable(error)}")
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _load(path: Path, key: str, on_message: Listener) -> Decoded | None:
    if not _sidecar(path).is_file():
        return None
    try:
        about = json.loads(_sidecar(path).read_text())
        if about["key"] != key:
            return None
        if _digest(path) != about["sha256"]:
            raise ValueError("SHA-256 differs")
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        on_message(
            f"the cached copy {printable(path)} is damaged ({error}); reading the data again"
        )
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Decoded:
    def with_tuples(values: dict[str, Any]) -> dict[str, Any]:
        return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}

    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"], object_hook=with_tuples)
    tensors = load_file(path)
    data = about.pop("data")
    for split in SPLITS:
        if f"{split}.pixels" not in tensors:  # no validation split
            continue
        start = f"{split}."
        parts = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        names, shown = data.pop(f"{split}_names"), parts.pop("shown", None)
        data[split] = Images(parts.pop("pixels"), parts.pop("labels"), parts, names, shown)
    return Decoded(DataSet(**data), **about)


def _keep(path: Path, key: str, decoded: Decoded, on_message: Listener) -> None:
    facts, tensors = dict(vars(decoded.data)), dict[str, Tensor]()
    for split in SPLITS:
        if (images := facts.pop(split)) is None:
            continue
        facts[f"{split}_names"] = images.names
        parts = {"pixels": images.pixels, "labels": images.labels, **images.extra}
        parts |= {} if images.shown is None else {"shown": images.shown}
        tensors |= {f"{split}.{name}": tensor.contiguous() for name, tensor in parts.items()}
    about = vars(decoded) | {"data": facts}
    temporary = path.with_suffix(".new")  # the lock is held, so no other process writes it
    try:
        # commit() would need another copy of the arrays in memory.
        save_file(tensors, temporary, {"about": json.dumps(about)})
        digest = _digest(temporary)
        temporary.replace(path)
        commit_json(_sidecar(path), {"key": key, "sha256": digest})
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        on_message(f"the cache {printable(path.parent)} cannot be written: {printable(error)}")
