"""The user's own pictures before any is decoded: where they are, their classes, splits and groups.

A row of ``DATA_READERS`` lists them. Axes: N images, C channels, H W pixels.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.core.spec import DataSpec
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.labels import same_group
from vitcli.runner.errors import InputError
from vitcli.runner.text import printable, quoted

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation", "dev"),
}
"""Split -> its names in a table or in arrays; capital letters do not matter."""


@dataclass(frozen=True, kw_only=True)
class PictureFolder:
    """Pictures and the files that belong to them: training, then test, then validation pictures."""

    root: Path
    class_names: tuple[str, ...]
    paths: list[str]
    """Files below ``root``. If there are ``arrays``, they are names of images, not files."""
    labels: list[int]
    num_train: int
    num_test: int | None
    """None if there is no test set; then pictures are held out."""
    num_val: int = 0
    """Number of pictures of the validation split, which are the last ones."""
    whole: "PictureFolder | None" = None
    """The folder with the validation pictures that ``without_val`` has left out."""
    groups: tuple[str, ...] = ()
    """The group of each picture, such as its video; empty without groups, or if in no group."""
    arrays: tuple[Any, ...] = ()
    """``ImageArray``: the pixels of the pictures, in their order, if they are not files."""
    extra_files: tuple[str, ...] = ()
    """Paths of the files that a row of ``EXTRAS`` reads, such as ``captions.csv``."""
    extra: "Mapping[str, Tensor]" = field(default_factory=dict)
    """Row of ``EXTRAS`` -> the numbers of the pictures, (N, K), that their table has."""
    facts: str = ""
    """What changes when a table changes that describes the pictures."""
    notes: tuple[str, ...] = ()
    data: DataSpec = field(default_factory=DataSpec)
    """How the pictures are read: its ``fit``, ``page``, ``channels`` and ``levels``."""
    file_chans: int = IN_CHANS
    """Number of channels of picture files."""

    @property
    def in_chans(self) -> int:
        return self.arrays[0].shape[1] if self.arrays else self.file_chans

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the path of each picture below the folder, without control characters."""
        folders = {*map(os.path.dirname, self.paths)}
        below = {folder: str(Path(folder).relative_to(self.root)) for folder in folders}
        return tuple(
            printable(os.path.normpath(os.path.join(below[folder], name)))
            for folder, name in map(os.path.split, self.paths)
        )

    @cached_property
    def stamp(self) -> str:
        digest = hashlib.sha256(self.facts.encode())
        for path in () if self.arrays else (*self.paths, *self.extra_files):
            line = f"{path[len(str(self.root)) :]}\0{file_version(path)}\n"
            digest.update(line.encode(errors="surrogateescape"))
        return digest.hexdigest()

    def without_val(self) -> "PictureFolder":
        end = len(self.paths) - self.num_val
        return replace(
            self,
            paths=self.paths[:end],
            labels=self.labels[:end],
            groups=self.groups[:end],
            extra={kind: numbers[:end] for kind, numbers in self.extra.items()},
            arrays=self.arrays[:-1] if self.arrays and self.num_val else self.arrays,
            num_val=0,
            whole=self,
        )


def file_version(path: str | Path) -> tuple[int, ...]:
    """Return what changes when a file is changed or replaced; empty for a link to nowhere.

    Size and modification time are those of the old file if two files of equal size exchange their
    names, as pictures without compression do after an archive has set their times.
    """
    try:
        status = os.stat(path)
    except OSError:  # the error comes when the file is read
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def group_of(folder: PictureFolder, pattern: str | None) -> Mapping[str, str]:
    """Return the group of each picture that is in one, by its name; see ``data.group``."""
    if pattern is None:
        pairs = zip(folder.names, map(same_group, folder.groups), strict=bool(folder.groups))
        return {name: group for name, group in pairs if group}
    groups = {}
    for name in folder.names:
        split, _, inner = name.partition("/")
        match = re.search(pattern, inner if inner and split_of(split) else name)
        if match is None:
            raise InputError(
                f"data.group: {quoted(pattern)} does not match {printable(name)!r}; change it, or"
                " use none: -s data.group=null"
            )
        groups[name] = "\n".join(match.groups("")) if match.re.groups else match[0]
    return groups


def divided(
    side: Sequence[str], other: Sequence[str], groups: Mapping[str, str]
) -> list[tuple[str, str]]:
    first = {groups[name]: name for name in reversed(other) if name in groups}
    return [(name, first[group]) for name in side if (group := groups.get(name)) in first]


@cache
def split_of(text: str) -> str | None:
    """Return the split that a text names, in any form; None for another text."""
    known = text.strip().casefold()
    return next((split for split, names in SPLITS.items() if known in names), None)


def splits_in_order(splits: Sequence[str]) -> tuple[list[int], int, int | None, int]:
    """Return the order of pictures in a folder, and its ``num_train``, ``num_test``, ``num_val``.

    ``splits`` has a key of ``SPLITS`` for each picture, or "" for all without splits. The
    validation split is the test set if there is no other.
    """
    rows: dict[str, list[int]] = {split: [] for split in ("", *SPLITS)}
    for row, split in enumerate(splits):
        rows[split].append(row)
    if rows[""]:
        return rows[""], len(rows[""]), None, 0
    if not rows["train"]:
        raise InputError("no picture is in the split 'train'")
    test, val = (rows["test"], rows["val"]) if rows["test"] else (rows["val"], list[int]())
    return [*rows["train"], *test, *val], len(rows["train"]), len(test) or None, len(val)
