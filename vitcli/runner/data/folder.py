"""The pictures in folders named after their classes: which are trained on, which are for testing.

No picture is decoded.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.data.cache import file_version
from vitcli.runner.data.extras import kind_of
from vitcli.runner.data.picture_files import JUNK, is_picture, pictures_inside
from vitcli.runner.errors import InputError
from vitcli.runner.text import composed, did_you_mean, is_utf8, printable, quantity

TRAIN = ("train", "training")
HELD_OUT = ("test", "testing", "val", "valid", "validation")
"""Names of the test set, the preferred ones first; capital letters do not matter."""
EXPECTED = "expected: PATH/train/<class>/*, PATH/test/<class>/* (or val), or PATH/<class>/*"


@dataclass(frozen=True, kw_only=True)
class PictureFolder:
    """The pictures in a folder, the training set first, and the files that belong to them."""

    root: Path
    class_names: tuple[str, ...]
    paths: list[str]
    labels: list[int]
    num_train: int
    num_test: int | None
    """None if there is no test set; then pictures are held out."""
    extra_files: tuple[str, ...]
    """Paths of the files that a row of ``EXTRAS`` reads, such as ``captions.csv``."""
    stamp: str
    """Changes when one of the files changes."""
    notes: tuple[str, ...]


def list_folder(root: Path, class_names: tuple[str, ...] | None = None) -> PictureFolder:
    """List the pictures in a folder.

    Hidden files and class folders without pictures are skipped.

    Args:
        root: The folder.
        class_names: The classes; by default the names of the class folders, sorted.

    Raises:
        InputError: The folder is missing, has fewer than two classes, or has a class in test that
            is not in train.
    """
    if not root.is_dir():
        moved = "if the pictures of a run have moved, give their folder with --data-dir"
        raise InputError(f"{printable(root)} is not a folder; {moved}; {EXPECTED}")
    try:
        return _list_folder(root, class_names)
    except OSError as error:
        where = printable(error.filename or root)
        raise InputError(f"{where} cannot be listed: {error.strerror}") from error


def _list_folder(root: Path, class_names: tuple[str, ...] | None) -> PictureFolder:
    train_at, test_at, notes = _find_splits(root)
    train = _classes(train_at, notes)
    names = class_names or tuple(sorted(train))
    if len(train) < 2:
        found = f"only {printable(*train)!r}" if train else "none"
        needed = f"{printable(train_at)} needs a folder of pictures for each class, and has {found}"
        raise InputError("; ".join([needed, *notes, EXPECTED]))
    test = _test_classes(test_at, names, notes) if test_at else {}
    if strange := sorted({*test, *train} - {*names}):
        known = "is not a class of this data set" if class_names else "has no pictures in train"
        what = f"{printable(strange[0])!r} {known}{did_you_mean(strange[0], names)}"
        raise InputError(f"{printable(root)}: {what}")
    pairs = [
        (path, label)
        for classes in (train, test)
        for label, name in enumerate(names)
        for path in classes.get(name, [])
    ]
    paths = [path for path, _ in pairs]
    folders = {str(root), str(train_at), str(test_at or root), *map(os.path.dirname, paths)}
    extras = sorted(path for folder in folders for path in _files(folder, kind_of))
    return PictureFolder(
        root=root,
        class_names=names,
        paths=paths,
        labels=[label for _, label in pairs],
        num_train=sum(map(len, train.values())),
        num_test=sum(map(len, test.values())) if test_at else None,
        extra_files=tuple(extras),
        stamp=_stamp(root, [*paths, *extras]),
        notes=tuple(notes),
    )


def _stamp(root: Path, paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        line = f"{path[len(str(root)) :]}\0{file_version(path)}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


# Training and test set


def _find_splits(root: Path) -> tuple[Path, Path | None, list[str]]:
    """Return the folders whose folders are the classes, of training and test set, and notes.

    A folder named like a split is a split if it has class folders. It is a class if it has pictures
    itself and other classes are beside it.

    Raises:
        InputError: There is a test set without a training set, or a split is a link to nowhere.
    """
    folders = _folders(root, (*TRAIN, *HELD_OUT))
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
    return root, None, [f"{printable(folder)} {beside}" for folder in classes]


def _by_split(
    train: Sequence[Path], held_out: Sequence[Path], others: Sequence[Path]
) -> tuple[Path, Path | None, list[str]]:
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
    return train[0], test, notes


def _named(folders: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Return the folders with one of the names, in the order of the names."""
    found = [folder for folder in folders if folder.name.casefold() in names]
    return sorted(found, key=lambda folder: names.index(folder.name.casefold()))


def _has_classes(folder: Path) -> bool:
    return any(map(_has_pictures, _class_folders(folder)))


def _has_pictures(folder: Path) -> bool:
    return bool(_files(str(folder), _is_image))


# Classes and their files


def _classes(folder: Path, notes: list[str]) -> dict[str, list[str]]:
    """Return the paths of the pictures of each class that has some; add to the notes."""
    found: dict[str, list[str]] = {}
    forms: dict[str, Path] = {}
    for inner in _class_folders(folder):
        if (other := forms.setdefault(composed(inner.name), inner)) != inner:
            raise InputError(
                f"{printable(inner)} and {other.name!a} are one name in two forms of Unicode;"
                " move the pictures into one of the folders, or rename one"
            )
        found[inner.name] = _files(str(inner), _is_image)
        _note_unused(inner, bool(found[inner.name]), notes)
    if loose := len(_files(str(folder), _is_image)):
        what = "beside the class folders" if any(found.values()) else "without a class folder"
        notes.append(f"{printable(folder)}: ignored {quantity(loose, 'picture')} {what}")
    return {name: files for name, files in found.items() if files}


def _test_classes(folder: Path, names: Sequence[str], notes: list[str]) -> dict[str, list[str]]:
    """Return the test pictures by the names of the classes, which may have two Unicode forms."""
    own: list[str] = []
    if test := _classes(folder, own):
        notes += own
        forms = {composed(name): name for name in names}
        return {forms.get(composed(name), name): files for name, files in test.items()}
    where = printable(folder)
    advice = f"sort its pictures into {where}/<class>/, or move {where} to another place"
    raise InputError("; ".join([f"{where} has no pictures of a class", *own, advice]))


def _note_unused(folder: Path, has_pictures: bool, notes: list[str]) -> None:
    """Note what a class folder holds beside pictures: folders and other files."""
    inner = [entry for entry in _visible(folder) if entry.is_dir()]
    if not has_pictures:
        what = "folders but no pictures" if inner else "no pictures"
        notes.append(f"{printable(folder)} has {what} and is skipped")
        return
    for entry in inner:
        if lost := len(pictures_inside(Path(entry.path))[0]):
            notes.append(f"{printable(entry.path)}: ignored {quantity(lost, 'picture')} in it")
    if others := _files(str(folder), _is_unknown):
        first = printable(os.path.basename(others[0]))
        what = f"{quantity(len(others), 'file')} of another kind"
        notes.append(f"{printable(folder)}: ignored {what}, such as {first}")


def _is_image(name: str) -> bool:
    return is_picture(name) and not kind_of(name)


def _is_unknown(name: str) -> bool:
    return not (is_picture(name) or kind_of(name) or name.lower() in JUNK)


def _class_folders(folder: Path) -> list[Path]:
    folders = _folders(folder)
    for each in folders:
        if not is_utf8(each.name):
            raise InputError(f"{printable(each)}: the name of this class is not UTF-8; rename it")
    return folders


def _folders(folder: Path, names: Collection[str] = ()) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones.

    Raises:
        InputError: A link leads nowhere, which may be a class, or one of ``names`` if given.
    """
    entries = _visible(folder)
    for entry in entries:
        is_meant = not names or entry.name.casefold() in names
        if is_meant and entry.is_symlink() and not os.path.exists(entry.path):
            raise InputError(f"{printable(entry.path)}: the link leads nowhere; mend or remove it")
    return [Path(entry.path) for entry in entries if entry.is_dir()]


def _files(folder: str, is_wanted: Callable[[str], object]) -> list[str]:
    """Return the paths of the files in a folder whose names are wanted, sorted."""
    return [e.path for e in _visible(folder) if is_wanted(e.name) and not e.is_dir()]


def _visible(folder: Path | str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.path)
