"""Pictures in folders named after their classes: list them, then read them with many threads."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.runner.data.pictures import (
    decode,
    picture_bytes,
    picture_size,
    quiet_pillow,
    shown,
)
from vitcli.runner.errors import InputError

DEFAULT_SIZE = (32, 32)
LARGEST = 1024
IN_CHANS = 3
REPORT_SECONDS = 5.0
PORTION = 64
JUNK = ("thumbs.db", "desktop.ini")
LAYOUT = "wanted: PATH/train/<class>/*, PATH/test/<class>/* (or val), or PATH/<class>/*"


@dataclass(frozen=True)
class Labelled:
    """Paths of pictures and the label of each."""

    paths: list[str]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What lies in a folder of pictures. ``stamp`` changes when a file does."""

    root: Path
    class_names: tuple[str, ...]
    train: Labelled
    test: Labelled | None
    stamp: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    mtime: int


def list_folder(root: Path, class_names: tuple[str, ...] | None = None) -> Folder:
    """List a folder of pictures; the classes are its sub-folders by name, or those given.

    Hidden files, and class folders without pictures, are passed over.

    Raises:
        InputError: No such folder, fewer than two classes, or a test class that train lacks.
    """
    if not root.is_dir():
        raise InputError(f"{shown(root)} is not a folder; {LAYOUT}")
    notes: list[str] = []
    train_at, test_at = _layout(root, notes)
    train = _classes(train_at, notes)
    names = class_names or tuple(sorted(train))
    if len(names) < 2:
        raise InputError(
            f"{shown(train_at)} has {len(names) or 'no'} class with pictures; {LAYOUT}"
        )
    test = _classes(test_at, notes) if test_at else None
    if strange := sorted({*(test or {}), *train} - {*names}):
        raise InputError(
            f"{shown(root)}: class {shown(strange[0])!r} has pictures in test but none in train"
        )
    return Folder(
        root=root,
        class_names=names,
        train=_labelled(train, names),
        test=None if test is None else _labelled(test, names),
        stamp=_stamp(root, [*train.values(), *(test or {}).values()]),
        notes=tuple(notes),
    )


def _layout(root: Path, notes: list[str]) -> tuple[Path, Path | None]:
    test, val = root / "test", root / "val"
    held_out = [folder for folder in (test, val) if folder.is_dir()]
    if (root / "train").is_dir():
        if len(held_out) == 2:
            notes.append(f"{shown(val)} is not used: {shown(test)} is the test set")
        return root / "train", held_out[0] if held_out else None
    if held_out:
        raise InputError(
            f"{shown(held_out[0])} is there but {shown(root / 'train')} is not; {LAYOUT}"
        )
    return root, None


def _classes(folder: Path, notes: list[str]) -> dict[str, list[_File]]:
    found = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.name.startswith(".") and entry.is_dir():
            found[entry.name] = _files(entry.path)
            if not found[entry.name]:
                notes.append(f"{shown(entry.path)} has no pictures and is passed over")
    return {name: files for name, files in found.items() if files}


def _files(folder: str) -> list[_File]:
    files = []
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.name.lower() in JUNK or entry.is_dir():
            continue
        try:
            facts = entry.stat()
            files.append(_File(entry.path, facts.st_size, facts.st_mtime_ns))
        except OSError:  # a dangling link: reading it will say so
            files.append(_File(entry.path, 0, 0))
    return sorted(files, key=lambda file: file.path)


def _labelled(classes: dict[str, list[_File]], names: tuple[str, ...]) -> Labelled:
    pairs = [(f.path, i) for i, name in enumerate(names) for f in classes.get(name, [])]
    return Labelled([path for path, _ in pairs], [label for _, label in pairs])


def _stamp(root: Path, groups: Iterable[list[_File]]) -> str:
    digest = hashlib.sha256()
    for file in (file for group in groups for file in group):
        name = os.path.relpath(file.path, root)
        digest.update(f"{name}\0{file.size}\0{file.mtime}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def common_size(paths: Sequence[str]) -> tuple[int, int] | None:
    """The one size of all pictures, from their headers; None where they differ."""
    first: tuple[int, int] | None = None
    with quiet_pillow(), _pool() as pool:
        for sizes in pool.map(_sizes, _portions(paths)):
            for size in sizes:
                first = first or size
                if size and size != first:
                    pool.shutdown(cancel_futures=True)
                    return None
    return first


def _sizes(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    sizes: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            sizes.append(picture_size(picture_bytes(path), path))
        except InputError:  # reading will name it, with all others
            sizes.append(None)
    return sizes


def chosen_size(folder: Folder, resize: tuple[int, int] | None) -> tuple[tuple[int, int], str]:
    """The size to read pictures at, and a note where it had to be decided here."""
    if resize:
        return resize, ""
    paths = folder.train.paths + (folder.test.paths if folder.test else [])
    common = common_size(paths)
    if common and max(common) <= LARGEST:
        return common, ""
    kind = f"of {common[0]}x{common[1]}" if common else "of several sizes"
    return DEFAULT_SIZE, (
        f"{shown(folder.root)}: pictures {kind} are read at 32x32;"
        " choose another size with -s data.resize=N"
    )


def read_labelled(
    files: Labelled,
    size: tuple[int, int],
    in_chans: int,
    on_message: Callable[[str], None],
) -> Images:
    """Decode pictures to (N, in_chans, *size) uint8.

    Raises:
        InputError: Some cannot be read; names the first and says how many.
    """
    pixels = torch.empty(len(files), in_chans, *size, dtype=torch.uint8)
    failures: list[str] = []
    done, reported = 0, time.monotonic()

    def read(portion: tuple[Sequence[str], Tensor]) -> list[str]:
        return _read_portion(*portion, size, in_chans)

    with quiet_pillow(), _pool() as pool:
        work = zip(_portions(files.paths), pixels.split(PORTION), strict=False)
        for failed in pool.map(read, work):
            failures += failed
            done += PORTION
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                on_message(f"reading pictures: {done:,} of {len(files):,}")
    if failures:
        count = (
            f"1 of {len(files):,} pictures"
            if len(failures) == 1
            else (f"{len(failures):,} of {len(files):,} pictures")
        )
        raise InputError(f"{count} cannot be read; the first is {failures[0]}")
    return Images(pixels, torch.tensor(files.labels, dtype=torch.int64))


def _read_portion(
    paths: Sequence[str], out: Tensor, size: tuple[int, int], in_chans: int
) -> list[str]:
    failures = []
    for path, target in zip(paths, out, strict=True):
        try:
            target.copy_(decode(picture_bytes(path), shown(path), size, in_chans))
        except InputError as error:
            failures.append(str(error))
    return failures


def _portions(paths: Sequence[str]) -> list[Sequence[str]]:
    return [paths[i : i + PORTION] for i in range(0, len(paths), PORTION)]


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(32, len(os.sched_getaffinity(0)) + 1))
