"""Lists of pictures in folders named after their classes; no picture is decoded."""

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.data.cache import file_version
from vitcli.runner.data.extras import is_image, kind_of
from vitcli.runner.data.layout import EXPECTED, class_folders, find_layout
from vitcli.runner.data.picture_files import JUNK, is_picture, pictures_inside
from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import composed, did_you_mean, printable, quantity

TEST_SHARE = 0.2


@dataclass(frozen=True)
class LabelledFiles:
    """Picture files with one label each."""

    paths: list[str]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def __add__(self, other: "LabelledFiles") -> "LabelledFiles":
        return LabelledFiles(self.paths + other.paths, self.labels + other.labels)

    def without(self, paths: Collection[str]) -> "LabelledFiles":
        """Return the files that are not in ``paths``."""
        pairs = zip(self.paths, self.labels, strict=True)
        kept = [(path, label) for path, label in pairs if path not in paths]
        return LabelledFiles([path for path, _ in kept], [label for _, label in kept])


def split_by_content(files: LabelledFiles) -> tuple[LabelledFiles, LabelledFiles]:
    """Split into (train, test), with a fifth of each class in test, by the SHA-256 of the files.

    The split does not depend on file names or on the size at which pictures are read. Identical
    files stay on the same side. A class with one file stays in train.
    """
    by_class: dict[int, dict[bytes, list[str]]] = {}
    for path, label in zip(files.paths, files.labels, strict=True):
        digest = hashlib.sha256(picture_bytes(path)).digest()
        by_class.setdefault(label, {}).setdefault(digest, []).append(path)
    train, test = LabelledFiles([], []), LabelledFiles([], [])
    for label, by_digest in by_class.items():
        share = max(1, round(TEST_SHARE * len(by_digest))) if len(by_digest) > 1 else 0
        for rank, digest in enumerate(sorted(by_digest)):
            side = test if rank < share else train
            side.paths.extend(by_digest[digest])
            side.labels.extend([label] * len(by_digest[digest]))
    return train, test


@dataclass(frozen=True, kw_only=True)
class PictureFolder:
    """The pictures in a folder, and the files that belong to them.

    ``stamp`` changes when a picture changes, ``extra_stamp`` when another of the files changes.
    """

    root: Path
    class_names: tuple[str, ...]
    train: LabelledFiles
    test: LabelledFiles | None
    stamp: str
    extra_files: tuple[str, ...] = ()
    """Paths of the files that a row of ``EXTRAS`` reads, such as ``captions.csv``."""
    extra_stamp: str = ""
    """Empty without such files."""
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> LabelledFiles:
        """All files: those of the training set, then those of the test set."""
        return self.train + (self.test or LabelledFiles([], []))


@dataclass(frozen=True)
class _File:
    path: str
    version: tuple[int, ...] = ()
    """See ``file_version``."""


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
    layout = find_layout(root)
    train_at, test_at, notes = layout.train, layout.test, [*layout.notes]
    train = _classes(train_at, notes)
    names = class_names or tuple(sorted(train))
    if len(train) < 2:
        found = f"only {printable(*train)!r}" if train else "none"
        needed = f"{printable(train_at)} needs a folder of pictures for each class, and has {found}"
        raise InputError("; ".join([needed, *notes, EXPECTED]))
    test = _test_classes(test_at, names, notes) if test_at else None
    if strange := sorted({*(test or {}), *train} - {*names}):
        known = "is not a class of this data set" if class_names else "has no pictures in train"
        what = f"{printable(strange[0])!r} {known}{did_you_mean(strange[0], names)}"
        raise InputError(f"{printable(root)}: {what}")
    groups = [*train.values(), *(test or {}).values()]
    extras = _extra_files({root, train_at, test_at or root}, groups)
    return PictureFolder(
        root=root,
        class_names=names,
        train=_labelled(train, names),
        test=None if test is None else _labelled(test, names),
        stamp=_stamp(root, groups),
        extra_files=tuple(file.path for file in extras),
        extra_stamp=_stamp(root, [extras]) if extras else "",
        notes=tuple(notes),
    )


def _classes(folder: Path, notes: list[str]) -> dict[str, list[_File]]:
    found: dict[str, list[_File]] = {}
    forms: dict[str, Path] = {}
    for inner in class_folders(folder):
        if (other := forms.setdefault(composed(inner.name), inner)) != inner:
            raise InputError(
                f"{printable(inner)} and {other.name!a} are one name in two forms of Unicode;"
                " move the pictures into one of the folders, or rename one"
            )
        found[inner.name] = _files(str(inner))
        _note_unused(str(inner), bool(found[inner.name]), notes)
    if loose := len(_files(str(folder))):
        what = "beside the class folders" if any(found.values()) else "without a class folder"
        notes.append(f"{printable(folder)}: ignored {quantity(loose, 'picture')} {what}")
    return {name: files for name, files in found.items() if files}


def _test_classes(folder: Path, names: Sequence[str], notes: list[str]) -> dict[str, list[_File]]:
    """Return the test pictures by the names of the classes, which may have two Unicode forms."""
    own: list[str] = []
    if test := _classes(folder, own):
        notes += own
        forms = {composed(name): name for name in names}
        return {forms.get(composed(name), name): files for name, files in test.items()}
    where = printable(folder)
    advice = f"sort its pictures into {where}/<class>/, or move {where} to another place"
    raise InputError("; ".join([f"{where} has no pictures of a class", *own, advice]))


def _note_unused(folder: str, has_pictures: bool, notes: list[str]) -> None:
    """Note what a class folder holds beside pictures: folders and other files."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    inner = [entry for entry in entries if entry.is_dir()]
    if not has_pictures:
        what = "folders but no pictures" if inner else "no pictures"
        notes.append(f"{printable(folder)} has {what} and is skipped")
        return
    for entry in inner:
        if lost := len(pictures_inside(Path(entry.path))[0]):
            notes.append(f"{printable(entry.path)}: ignored {quantity(lost, 'picture')} in it")
    names = {entry.name for entry in entries} - {entry.name for entry in inner}
    others = [n for n in names if not (is_picture(n) or kind_of(n) or n.lower() in JUNK)]
    if others:
        first = printable(min(others))
        what = f"{quantity(len(others), 'file')} of another kind"
        notes.append(f"{printable(folder)}: ignored {what}, such as {first}")


def _extra_files(splits: Collection[Path], groups: Iterable[list[_File]]) -> list[_File]:
    """Return the files of the rows of ``EXTRAS`` in the folders of splits and of pictures."""
    inside = {os.path.dirname(file.path) for files in groups for file in files}
    folders = {str(split) for split in splits} | inside
    found = [file for folder in folders for file in _files(folder, is_extra=True)]
    return sorted(found, key=lambda file: file.path)


def _files(folder: str, *, is_extra: bool = False) -> list[_File]:
    """Return the pictures in a folder, or the files that belong to pictures."""
    files = []
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.is_dir():
            continue
        is_wanted = kind_of(entry.name) is not None if is_extra else is_image(entry.name)
        if not is_wanted:
            continue
        try:
            files.append(_File(entry.path, file_version(entry.stat())))
        except OSError:  # a dangling link: the error comes when it is read
            files.append(_File(entry.path))
    return sorted(files, key=lambda file: file.path)


def _labelled(classes: dict[str, list[_File]], names: tuple[str, ...]) -> LabelledFiles:
    pairs = [(f.path, i) for i, name in enumerate(names) for f in classes.get(name, [])]
    return LabelledFiles([path for path, _ in pairs], [label for _, label in pairs])


def _stamp(root: Path, groups: Iterable[list[_File]]) -> str:
    digest, start = hashlib.sha256(), len(str(root))
    for file in (file for group in groups for file in group):
        line = f"{file.path[start:]}\0{file.version}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
