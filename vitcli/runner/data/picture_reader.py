"""Many picture files decoded into arrays, and those of a folder checked before a training.

Mistakes are found: files that cannot be read, and copies in the test set or in two classes.

Axes: N images, C channels, H W pixels.
"""

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import (
    Size,
    arranged,
    central_box,
    pixel_digests,
    require_memory,
)
from vitcli.runner.data.cache import Decoded
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.extras import read_extras
from vitcli.runner.data.find import Listener
from vitcli.runner.data.folder import PictureFolder
from vitcli.runner.data.near_copies import MOST_PAIRS, near_copies
from vitcli.runner.data.pictures import decode, picture_bytes, picture_size, quiet_pillow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.text import listed, percent, printable

Read = TypeVar("Read")
DEFAULT_SIZE = (32, 32)
LARGEST = 1024
REPORT_SECONDS = 5.0
LARGE_FILE = 32_768
TEST_SHARE = 0.2
MOST_LOST = 0.1
"""Share of the area above which a note says how much a crop keeps."""
NUM_MEASURED = 500
"""Number of pictures of which that share is measured."""
NUM_SHOWN = 3
"""Number of files that a note names."""


# Any picture files


def _each(
    read: Callable[[str], Read], paths: Sequence[str]
) -> Generator[Read | InputError, None, None]:
    """Yield what ``read`` returns for each path, in order, or its error.

    Large pictures are read on several threads. For small ones, Python's lock dominates: measured on
    2 cores with 32x32 PNG files, 0.22 ms per picture in one thread, 0.27 ms in two.
    """

    def attempt(path: str) -> Read | InputError:
        try:
            return read(path)
        except InputError as error:
            return error

    sample = paths[:: max(1, len(paths) // 100)]
    mean = sum(os.path.getsize(path) for path in sample if os.path.isfile(path)) / len(sample)
    with quiet_pillow():
        if mean <= LARGE_FILE:
            yield from map(attempt, paths)
            return
        pool = ThreadPoolExecutor(torch.get_num_threads())
        try:
            yield from pool.map(attempt, paths)
        finally:
            pool.shutdown(cancel_futures=True)


def read_each(
    paths: Sequence[str], size: Size, in_chans: int, fit: str = "crop"
) -> Generator[Tensor | InputError, None, None]:
    """Yield each picture as (in_chans, *size) uint8; a picture that cannot be read is an error.

    Close the generator, or read it to its end: until then, no other picture can be decoded.

    Raises:
        ConfigError: The model takes images with another number of channels than pictures have.
    """
    if in_chans not in (1, 3):
        raise ConfigError(f"pictures have 1 or 3 channels, model.in_chans is {in_chans}")
    return _each(lambda path: decode(picture_bytes(path), path, size, in_chans, fit), paths)


def picture_sizes(paths: Sequence[str]) -> Generator[Size, None, None]:
    """Yield the size of each picture whose header can be read; close it as ``read_each``."""
    with contextlib.closing(_each(picture_size, paths)) as sizes:
        for size in sizes:
            if not isinstance(size, InputError):  # reported when the pictures are read
                yield size


def kept_area(sizes: Mapping[Size, int], target: Size) -> float:
    """Return the mean share of the area that a crop to the shape of ``target`` keeps.

    Args:
        sizes: (H, W) of pictures -> their number.
        target: (H, W).
    """
    boxes = {size: central_box(*size, target) for size in sizes}
    kept = (n * boxes[h, w][2] * boxes[h, w][3] / (h * w) for (h, w), n in sizes.items())
    return sum(kept) / sum(sizes.values())


def natural_size(sizes: Iterable[Size]) -> Size:
    """Return the common size of pictures up to 1024x1024; otherwise 32x32."""
    common: Size | None = None
    for size in sizes:
        common = common or size
        if size != common:
            return DEFAULT_SIZE
    return common if common and max(common) <= LARGEST else DEFAULT_SIZE


# The pictures of a folder


def read_labelled(
    folder: PictureFolder, size: Size, in_chans: int, on_message: Listener, fit: str = "crop"
) -> tuple[Images, dict[int, str]]:
    """Decode all pictures of a folder to (N, in_chans, *size) uint8; ``fit`` is one of ``FITS``.

    Returns:
        The images, and for each that cannot be read its index, name and reason. Its pixels are
        undefined.
    """
    paths, failures, reported = folder.paths, dict[int, str](), time.monotonic()
    pixels = torch.empty(len(paths), in_chans, *size, dtype=torch.uint8)
    with contextlib.closing(read_each(paths, size, in_chans, fit)) as pictures:
        for row, picture in enumerate(pictures):
            if isinstance(picture, InputError):
                reason = str(picture).removeprefix(f"{printable(paths[row])}: ")
                failures[row] = f"{name_of(folder, row)}: {reason}"
            else:
                pixels[row] = picture
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                on_message(f"reading pictures: {row + 1:,} of {len(paths):,}")
    return Images(pixels, torch.tensor(folder.labels, dtype=torch.int64)), failures


def read_folder(
    folder: PictureFolder, size: Size, *, fit: str, skip_bad: bool, on_message: Listener
) -> Decoded:
    """Read and check the pictures of a folder. Without a test set, a fifth of them is held out.

    The split depends on the readable files only. So it stays the same if the others are deleted.

    Raises:
        InputError: Pictures cannot be read, and ``skip_bad`` is off or no picture of a class is
            left.
    """
    total = len(folder.paths)
    on_message(f"reading {total:,} pictures from {printable(folder.root)}")
    require_memory(total, IN_CHANS, size)
    images, failures = read_labelled(folder, size, IN_CHANS, on_message, fit)
    unreadable = tuple(failures.values())
    if not skip_bad:
        refuse_unreadable(folder, unreadable)
    train, test = splits(folder, [row for row in range(total) if row not in failures])
    copies = find_copies(folder, images.pixels, train, test)
    notes = _describe(folder, copies, train, test)
    sample = folder.paths[:: max(1, total // NUM_MEASURED)]
    if fit == "crop" and (kept := kept_area(Counter(picture_sizes(sample)), size)) < 1 - MOST_LOST:
        notes.append(
            f"note: the crop to {size[0]}x{size[1]} keeps {percent(kept, 0)} of a picture's area on"
            " average; --fit pad shows whole pictures (data.fit)"
        )
    if unreadable:
        what = f"{len(unreadable):,} of {total:,} pictures left out, because they cannot be read"
        notes.insert(0, f"note: {what}:\n{listed(unreadable, NUM_SHOWN)}")
    rows, names = [*train, *test], [name_of(folder, row) for row in test]
    paths = [folder.paths[row] for row in rows]
    extra, reasons = read_extras(folder.root, folder.extra_files, paths)
    both, cut = replace(images[torch.tensor(rows)], extra=extra), len(train)
    data = arranged(folder.class_names, both[:cut], both[cut:], test_names=names)
    leaks = tuple(pair_names(folder, copies.leaks))
    return Decoded(data, unreadable, leaks, tuple(notes), reasons)


def refuse_unreadable(
    folder: PictureFolder,
    unreadable: Sequence[str],
    hint: str = "Repair or remove them, or train without them: --skip-bad (data.skip_bad: true)",
) -> None:
    """Refuse a folder with unreadable pictures.

    Raises:
        InputError: There are such pictures. The text lists them.
    """
    if unreadable:
        raise InputError(
            f"{len(unreadable):,} of {len(folder.paths):,} pictures in {printable(folder.root)}"
            f" cannot be read:\n{listed(unreadable)}\n{hint}"
        )


def splits(folder: PictureFolder, readable: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the indices of training and test pictures."""
    train = [row for row in readable if row < folder.num_train]
    test = [row for row in readable if row >= folder.num_train]
    lost = {*folder.labels[: folder.num_train]} - {folder.labels[row] for row in train}
    if lost or (folder.num_test is not None and not test):
        what = f"class {folder.class_names[min(lost)]!r}" if lost else "the test set"
        raise InputError(f"{printable(folder.root)}: no picture of {printable(what)} can be read")
    if folder.num_test is None:
        train, test = _split_by_content(folder, train)
    if not test:
        raise InputError(f"{printable(folder.root)}: too few pictures to hold some out for testing")
    return train, test


def _split_by_content(folder: PictureFolder, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split into (train, test), with a fifth of each class in test, by the SHA-256 of the files.

    The split does not depend on file names or on the size at which pictures are read. Identical
    files stay on the same side. A class with one file stays in train.
    """
    by_class: dict[int, dict[bytes, list[int]]] = {}
    for row in rows:
        digest = hashlib.sha256(picture_bytes(folder.paths[row])).digest()
        by_class.setdefault(folder.labels[row], {}).setdefault(digest, []).append(row)
    train, test = list[int](), list[int]()
    for by_digest in by_class.values():
        share = max(1, round(TEST_SHARE * len(by_digest))) if len(by_digest) > 1 else 0
        for rank, digest in enumerate(sorted(by_digest)):
            (test if rank < share else train).extend(by_digest[digest])
    return train, test


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Pairs of pictures of a folder that are the same, as rows of its paths."""

    leaks: list[tuple[int, int]]
    """A test picture and a training picture with the same pixels."""
    alike: list[tuple[int, int]]
    """A test picture and a training picture that look alike."""
    contradictions: list[tuple[int, int]]
    """Training pictures with the same pixels in two classes."""


def find_copies(
    folder: PictureFolder, pixels: Tensor, train: Sequence[int], test: Sequence[int]
) -> Copies:
    """Compare the pictures of a folder.

    Args:
        folder: The folder.
        pixels: Its pictures, (N, C, H, W) uint8.
        train: Rows of the training pictures.
        test: Rows of the test pictures.
    """
    digests, first = pixel_digests(pixels), dict[bytes, int]()
    twins = [
        (row, other)
        for row in train
        for other in [first.setdefault(digests[row], row)]
        if folder.labels[other] != folder.labels[row]
    ]
    last = {digests[row]: row for row in train}
    leaks = [(row, last[digests[row]]) for row in test if digests[row] in last]
    known, asked = (torch.tensor(rows, dtype=torch.long) for rows in (train, test))
    alike, is_exact = list[tuple[int, int]](), {row for row, _ in leaks}
    if len(train) * len(test) <= MOST_PAIRS:
        pairs = near_copies(pixels[asked], pixels[known])
        alike = [(test[a], train[b]) for a, b in pairs if test[a] not in is_exact]
    return Copies(leaks=leaks, alike=alike, contradictions=twins)


def _describe(
    folder: PictureFolder, copies: Copies, train: Sequence[int], test: Sequence[int]
) -> list[str]:
    """Return notes on pictures that are (nearly) the same in train and test, or in two classes."""
    found = (
        (
            copies.leaks,
            f"{len(test):,} test pictures found in train, too; the test accuracy is too high",
        ),
        (
            copies.alike,
            f"{len(test):,} test pictures look like a training picture (turned, resized, cut or"
            " saved again); if they are the same, the test accuracy is too high",
        ),
        (
            copies.contradictions,
            f"{len(train):,} training pictures found in another class, too",
        ),
    )
    return [
        f"note: {len(pairs):,} of {what}:\n" + listed(pair_names(folder, pairs), NUM_SHOWN)
        for pairs, what in found
        if pairs
    ]


def pair_names(folder: PictureFolder, pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Return ``A = B`` for each pair of rows."""
    return [f"{name_of(folder, a)} = {name_of(folder, b)}" for a, b in pairs]


def name_of(folder: PictureFolder, row: int) -> str:
    """Return the path of a picture within its folder."""
    return printable(Path(folder.paths[row]).relative_to(folder.root))
