"""Where a folder of pictures has its training and its test set."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.data.extras import is_image
from vitcli.runner.errors import InputError
from vitcli.runner.text import is_utf8, printable

TRAIN = ("train", "training")
HELD_OUT = ("test", "testing", "val", "valid", "validation")
"""Names of the test set, the preferred ones first; capital letters do not matter."""
EXPECTED = "expected: PATH/train/<class>/*, PATH/test/<class>/* (or val), or PATH/<class>/*"


@dataclass(frozen=True)
class Layout:
    """The folders whose folders are the classes; without ``test``, pictures are held out."""

    train: Path
    test: Path | None = None
    notes: tuple[str, ...] = ()


def find_layout(root: Path) -> Layout:
    """Return where the training and the test set are.

    A folder named like a split is a split if it has class folders. It is a class if it has pictures
    itself and other classes are beside it.

    Raises:
        InputError: There is a test set without a training set, or a split is a link to nowhere.
    """
    entries = _visible(root)
    for entry in entries:
        if entry.name.casefold() in (*TRAIN, *HELD_OUT):
            _refuse_dangling(entry)
    folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    train, held_out = _named(folders, TRAIN), _named(folders, HELD_OUT)
    others = [folder for folder in folders if folder not in (*train, *held_out)]
    if sorted_by_class := [folder for folder in train if _has_classes(folder)]:
        return _by_split([*dict.fromkeys(sorted_by_class + train)], held_out, others)
    has_classes = any(map(_has_pictures, others))
    if train and not (has_classes and _has_pictures(train[0])):
        return _by_split(train, held_out, others)
    apart = [f for f in held_out if not has_classes or (_has_classes(f) and not _has_pictures(f))]
    if apart:
        missing = printable(root / "train")
        raise InputError(f"{printable(apart[0])} exists but {missing} does not; {EXPECTED}")
    classes = [folder for folder in (*train, *held_out) if _has_pictures(folder)]
    beside = "is read as a class, like the folders beside it"
    return Layout(root, None, tuple(f"{printable(folder)} {beside}" for folder in classes))


def class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones.

    Raises:
        InputError: A link leads nowhere, which may be that of a class; or a name is not UTF-8.
    """
    entries = _visible(folder)
    for entry in entries:
        _refuse_dangling(entry)
    folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    for each in folders:
        if not is_utf8(each.name):
            raise InputError(f"{printable(each)}: the name of this class is not UTF-8; rename it")
    return folders


def _by_split(train: Sequence[Path], held_out: Sequence[Path], others: Sequence[Path]) -> Layout:
    test, notes = (held_out[0] if held_out else None), []
    if test and test.name.casefold() != "test":
        notes.append(f"{printable(test)} is the test set")
    if test:
        is_test = f"is not used: {printable(test)} is the test set"
        notes += [f"{printable(folder)} {is_test}" for folder in held_out[1:]]
    for folder in (*train[1:], *others):
        with suppress(OSError, InputError):  # it is no part of the data set
            if _has_pictures(folder) or _has_classes(folder):
                is_train = f"{printable(train[0])} is the training set"
                notes.append(f"{printable(folder)} is not used: {is_train}")
    return Layout(train[0], test, tuple(notes))


def _named(folders: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Return the folders with one of the names, in the order of the names."""
    found = [folder for folder in folders if folder.name.casefold() in names]
    return sorted(found, key=lambda folder: names.index(folder.name.casefold()))


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return sorted(entries, key=lambda entry: entry.name)


def _refuse_dangling(entry: os.DirEntry[str]) -> None:
    if entry.is_symlink() and not os.path.exists(entry.path):
        raise InputError(f"{printable(entry.path)}: the link leads nowhere; mend or remove it")


def _has_classes(folder: Path) -> bool:
    return any(map(_has_pictures, class_folders(folder)))


def _has_pictures(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) and not entry.is_dir() for entry in entries)
