"""The pictures of a folder, decoded and checked before they are trained on.

Two mistakes are found: files that cannot be read, and copies of a training picture in the test set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import pixel_digests, require_memory
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.extras import read_extras
from vitcli.runner.data.image_folder import LabelledFiles, PictureFolder, split_by_content
from vitcli.runner.data.image_reader import Listener, read_labelled
from vitcli.runner.errors import InputError
from vitcli.runner.text import listed, printable


@dataclass(frozen=True, kw_only=True)
class ReadPictures:
    """The readable pictures of a folder, and what is wrong with the others."""

    train: Images
    test: Images
    test_names: tuple[str, ...]
    """File of each test picture, relative to the folder."""
    unreadable: tuple[str, ...]
    """Name and reason of each picture that cannot be read."""
    copies: tuple[str, ...]
    """``TEST = TRAIN`` for each test picture with the same pixels as a training picture."""
    ambiguous: tuple[str, ...]
    """``A = B`` for each training picture with the same pixels as one of another class."""
    unusable_extras: Mapping[str, str]
    """See ``Decoded``."""


def read_folder(
    folder: PictureFolder, size: tuple[int, int], *, skip_bad: bool, on_message: Listener
) -> ReadPictures:
    """Decode the pictures of a folder. Without a test set, a fifth of them is held out.

    The split depends on the readable files only. So it stays the same if the others are deleted.

    Raises:
        InputError: Pictures cannot be read, and ``skip_bad`` is off or no picture of a class is
            left.
    """
    files = folder.files
    on_message(f"reading {len(files):,} pictures from {printable(folder.root)}")
    require_memory(len(files), IN_CHANS, size)
    images, failures = read_labelled(files, size, IN_CHANS, on_message)
    unreadable = describe_failures(folder, failures)
    if not skip_bad:
        refuse_unreadable(folder, unreadable)
    train = folder.train.without(failures)
    test = None if folder.test is None else folder.test.without(failures)
    _refuse_empty(folder, train, test)
    if test is None:
        train, test = split_by_content(train)
    if not len(test):
        raise InputError(f"{printable(folder.root)}: too few pictures to hold some out for testing")
    rows = {path: row for row, path in enumerate(files.paths)}
    digests = pixel_digests(images.pixels)
    known = {digests[rows[path]]: path for path in train.paths}
    same = [(path, known.get(digests[rows[path]])) for path in test.paths]
    first: dict[bytes, tuple[str, int]] = {}
    twins = [
        (path, other)
        for path, label in zip(train.paths, train.labels, strict=True)
        for other, theirs in [first.setdefault(digests[rows[path]], (path, label))]
        if theirs != label
    ]
    index = torch.tensor([rows[path] for path in [*train.paths, *test.paths]], dtype=torch.int64)
    extra, reasons = read_extras(folder.root, folder.extra_files, [*train.paths, *test.paths])
    both = replace(images[index], extra=extra)
    return ReadPictures(
        train=both[: len(train)],
        test=both[len(train) :],
        test_names=tuple(_name(folder, path) for path in test.paths),
        unreadable=unreadable,
        copies=tuple(f"{_name(folder, a)} = {_name(folder, b)}" for a, b in same if b),
        ambiguous=tuple(f"{_name(folder, a)} = {_name(folder, b)}" for a, b in twins),
        unusable_extras=reasons,
    )


def describe_failures(folder: PictureFolder, failures: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each picture that cannot be read: its name and the reason."""
    return tuple(f"{_name(folder, path)}: {reason}" for path, reason in failures.items())


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
            f"{len(unreadable):,} of {len(folder.files):,} pictures in {printable(folder.root)}"
            f" cannot be read:\n{listed(unreadable)}\n{hint}"
        )


def _refuse_empty(folder: PictureFolder, train: LabelledFiles, test: LabelledFiles | None) -> None:
    lost = sorted({*folder.train.labels} - {*train.labels})
    if lost or (test is not None and not len(test)):
        what = f"class {folder.class_names[lost[0]]!r}" if lost else "the test set"
        raise InputError(f"{printable(folder.root)}: no picture of {printable(what)} can be read")


def _name(folder: PictureFolder, path: str) -> str:
    return printable(Path(path).relative_to(folder.root))
