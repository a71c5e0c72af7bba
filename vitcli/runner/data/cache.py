"""The cache of decoded arrays: one safetensors file per data set and size, with a SHA-256."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from filelock import Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.runner.files import commit_json, file_lock
from vitcli.runner.text import printable

FORMAT = 2
"""Raised when a file of pictures or arrays is decoded to other pixels than before."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A data set in canonical order, with mean and std of its training images."""

    class_names: tuple[str, ...]
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_hash: str
    test_names: tuple[str, ...] = ()
    """File of each test picture, relative to the folder; empty without a folder."""
    unreadable: tuple[str, ...] = ()
    """Name and reason of each picture that was left out, because it cannot be read."""
    copies: tuple[str, ...] = ()
    """``TEST = TRAIN`` for each test picture with the same pixels as a training picture."""
    ambiguous: tuple[str, ...] = ()
    """``A = B`` for each training picture with the same pixels as one of another class."""
    unusable_extras: Mapping[str, str] = field(default_factory=dict)
    """Row of ``EXTRAS`` -> why the folder has no tensor of it, although it has such files."""


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is changed or replaced, for the key of its cached arrays.

    Size and modification time are those of the old file if two files of equal size exchange their
    names, as pictures without compression do after an archive has set their times.
    """
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def load_or_build(
    path: Path, key: str, build: Callable[[], Decoded], on_message: Callable[[str], None]
) -> Decoded:
    """Load the arrays of ``key`` from ``path``; otherwise build them and cache them there.

    A damaged file is rebuilt. If the cache cannot be written, the arrays are returned anyway.
    """
    with _lock(path, on_message) as writable:
        if decoded := _load(path, key, on_message):
            return decoded
        decoded = build()
        if writable:
            _keep(path, key, decoded, on_message)
        return decoded


@contextlib.contextmanager
def _lock(path: Path, on_message: Callable[[str], None]) -> Iterator[bool]:
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


def sidecar_path(path: Path) -> Path:
    """Return the path of the JSON file that holds the key and the SHA-256 of a cache file."""
    return path.with_suffix(".json")


def _load(path: Path, key: str, on_message: Callable[[str], None]) -> Decoded | None:
    if not sidecar_path(path).is_file():
        return None
    try:
        about = json.loads(sidecar_path(path).read_text())
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
    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Decoded(
        class_names=tuple(about["class_names"]),
        train=_split(tensors, "train"),
        test=_split(tensors, "test"),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        data_hash=about["data_hash"],
        test_names=tuple(about.get("test_names", ())),
        unreadable=tuple(about.get("unreadable", ())),
        copies=tuple(about.get("copies", ())),
        ambiguous=tuple(about.get("ambiguous", ())),
        unusable_extras=about.get("unusable_extras", {}),
    )


def _split(tensors: Mapping[str, Tensor], name: str) -> Images:
    start = f"{name}.extra."
    extra = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
    return Images(tensors[f"{name}.pixels"], tensors[f"{name}.labels"], extra)


def _tensors(images: Images, name: str) -> dict[str, Tensor]:
    extra = {f"{name}.extra.{key}": values for key, values in images.extra.items()}
    return {f"{name}.pixels": images.pixels, f"{name}.labels": images.labels, **extra}


def _keep(path: Path, key: str, decoded: Decoded, on_message: Callable[[str], None]) -> None:
    about = {
        "class_names": decoded.class_names,
        "mean": decoded.mean,
        "std": decoded.std,
        "data_hash": decoded.data_hash,
        "test_names": decoded.test_names,
        "unreadable": decoded.unreadable,
        "copies": decoded.copies,
        "ambiguous": decoded.ambiguous,
        "unusable_extras": decoded.unusable_extras,
    }
    tensors = _tensors(decoded.train, "train") | _tensors(decoded.test, "test")
    temporary = path.with_suffix(".new")  # the lock is held, so no other process writes it
    try:
        # commit() would need two more copies of the arrays in memory.
        safetensors.torch.save_file(tensors, temporary, {"about": json.dumps(about)})
        digest = _digest(temporary)
        temporary.replace(path)
        commit_json(sidecar_path(path), {"key": key, "sha256": digest})
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        on_message(f"the cache {printable(path.parent)} cannot be written: {printable(error)}")
