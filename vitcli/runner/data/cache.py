"""The cache of decoded arrays: one safetensors file per data set and size, with a SHA-256."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from filelock import Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitcli.core.data.source import DataSet, Images
from vitcli.runner.data.find import Listener, cache_root
from vitcli.runner.files import commit, commit_json, file_lock
from vitcli.runner.text import printable

FORMAT = 4
"""Raised when a file of pictures or arrays is decoded to other pixels or facts than before."""
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Decoded:
    """A data set in canonical order, and what is wrong with its files."""

    data: DataSet
    unreadable: tuple[str, ...] = ()
    """Name and reason of each picture that was left out, because it cannot be read."""
    same: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Row of ``SAME`` -> the names of two pictures of a folder that look the same."""
    kept_area: float = 1.0
    """Mean share of the area of a picture that the crop keeps."""
    unusable_extras: Mapping[str, str] = field(default_factory=dict)
    """Row of ``EXTRAS`` -> why the folder has no tensor of it, although it has such files."""


def array_file(name: str | Path, size: tuple[int, int] | None) -> Path:
    """Return the cache file of a named data set, or of a folder of pictures."""
    if isinstance(name, Path):
        where = str(name.resolve()).encode(errors="surrogateescape")
        name = f"imagefolder-{hashlib.sha256(where).hexdigest()[:12]}"
    suffix = f"{size[0]}x{size[1]}" if size else "native"
    return cache_root() / "arrays" / f"{name}-{suffix}.safetensors"


def cached_files(name: str | Path) -> tuple[Path, ...]:
    """Return the cache files of a data set, one for each size that it was read at."""
    native = array_file(name, None)
    files = sorted(native.parent.glob(native.name.replace("-native", "-*")))
    return tuple(path for path in files if _sidecar(path).is_file())


def _sidecar(path: Path) -> Path:
    """Return the path of the JSON file that holds the key and the SHA-256 of a cache file."""
    return path.with_suffix(".json")


def load_or_build(
    path: Path, parts: object, build: Callable[[], Decoded], on_message: Listener
) -> Decoded:
    """Load the arrays of a key from ``path``; otherwise build them and cache them there.

    The key is the text of ``parts``, on which the arrays depend. A damaged file is rebuilt. If the
    cache cannot be written, the arrays are returned anyway.
    """
    key = _key(parts)
    with _lock(path, on_message) as writable:
        if decoded := _load(path, key, on_message):
            return decoded
        decoded = build()
        if writable:
            _keep(path, key, decoded, on_message)
        return decoded


def _key(parts: object) -> str:
    return hashlib.sha256(repr((FORMAT, parts)).encode()).hexdigest()


class Chunks:
    """Decoded pictures beside a cache file, from which a reading that was cut off goes on.

    Each chunk has pictures in the order of the folder. A chunk of other files, or a damaged one, is
    not used.

    Args:
        path: The cache file.
        parts: What its arrays depend on, as in ``load_or_build``.
    """

    def __init__(self, path: Path, parts: object) -> None:
        self._path, self._key, self._count = path, _key(parts), 0

    def _file(self, number: int) -> Path:
        return self._path.with_suffix(f".{number}.part")

    def load(self, pixels: Tensor, failures: dict[int, str]) -> int:
        """Fill in what is decoded already, pixels (N, C, H, W) and failures; return how many."""
        done = 0
        with contextlib.suppress(OSError, ValueError, KeyError, RuntimeError, SafetensorError):
            while self._file(self._count).is_file():
                with safe_open(self._file(self._count), "pt") as file:
                    about = json.loads(file.metadata()[self._key])
                    part = file.get_tensor("pixels")
                pixels[done : done + len(part)].copy_(part)
                failures |= {int(row): reason for row, reason in about.items()}
                done += len(part)
                self._count += 1
        return done

    def save(self, pixels: Tensor, failures: Mapping[int, str]) -> None:
        """Keep the next pictures, (N, C, H, W), and the failures among them, if there is room."""
        about = {self._key: json.dumps(failures)}
        with contextlib.suppress(OSError):
            content = safetensors.torch.save({"pixels": pixels.contiguous()}, about)
            commit(self._file(self._count), content)
            self._count += 1

    def remove(self) -> None:
        """Remove all chunks of this cache file."""
        for file in self._path.parent.glob(f"{self._path.stem}.*.part"):
            file.unlink(missing_ok=True)


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
    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"], object_hook=_with_tuples)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    data = about.pop("data")
    for split in SPLITS:
        start = f"{split}."
        own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        names = data.pop(f"{split}_names")
        data[split] = Images(own.pop("pixels"), own.pop("labels"), own, names)
    return Decoded(DataSet(**data), **about)


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _keep(path: Path, key: str, decoded: Decoded, on_message: Listener) -> None:
    facts, tensors = dict(vars(decoded.data)), dict[str, Tensor]()
    for split in SPLITS:
        images = facts.pop(split)
        facts[f"{split}_names"] = images.names
        own = {"pixels": images.pixels, "labels": images.labels, **images.extra}
        tensors |= {f"{split}.{name}": tensor for name, tensor in own.items()}
    about = vars(decoded) | {"data": facts}
    temporary = path.with_suffix(".new")  # the lock is held, so no other process writes it
    try:
        # commit() would need two more copies of the arrays in memory.
        safetensors.torch.save_file(tensors, temporary, {"about": json.dumps(about)})
        digest = _digest(temporary)
        temporary.replace(path)
        commit_json(_sidecar(path), {"key": key, "sha256": digest})
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        on_message(f"the cache {printable(path.parent)} cannot be written: {printable(error)}")
