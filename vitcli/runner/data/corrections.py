"""Corrections of a folder of pictures: which are left out, and which belong to another class."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitcli.core.data.source import DataSet, Images
from vitcli.runner.data.arrays import arranged
from vitcli.runner.data.extras import Cell, column_of, images_by_class
from vitcli.runner.data.labels import same_class
from vitcli.runner.data.listing import PictureFolder
from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_lines
from vitcli.runner.text import composed, did_you_mean, printable, quantity

CORRECTIONS = ["file", "label"]
"""The columns of the file. A path is relative to the folder of the pictures."""
Corrections = Mapping[str, int | Tensor | None]
"""Name of a picture -> the index of its class, or its numbers (K,) in the place of a class; None
leaves the picture out."""


def corrections_file(file: str, folder: PictureFolder) -> Path:
    """Return the place of ``data.corrections``.

    A file that is not there is looked for by the end of its path in the folder of the pictures,
    because both may have moved.
    """
    path = Path(os.path.expanduser(file))
    root = folder.root if folder.root.is_dir() else folder.root.parent  # of a file of arrays
    ends = (root.joinpath(*path.parts[start:]) for start in range(len(path.parts)))
    for place in (path, *ends):
        if place.is_file():
            return place
    copied = shlex.quote(str(root / path.name))
    raise InputError(
        f"data.corrections: {printable(file)} is not here, nor in {printable(root)}; name its place"
        f" (-s data.corrections=FILE), or type: cp FILE {printable(copied)}"
    )


def read_corrections(file: str | None, folder: PictureFolder) -> Corrections:
    """Return the corrections in ``data.corrections``; none without such a file.

    The file may name validation pictures that are not used.
    """
    if file is None:
        return {}
    known: dict[str, list[str]] = {}
    for name in (folder.whole or folder).names:
        known.setdefault(composed(name).strip(), []).append(name)
    classes = [*map(same_class, folder.class_names)]
    corrections = dict[str, int | Tensor | None]()
    column = column_of(folder.extra)
    path, cells = corrections_file(file, folder), list[Cell]()
    for at, written, label in csv_lines(path, CORRECTIONS):
        names = known.get(composed(written), [])
        if len(names) != 1:
            hint = "; rename all but one" if names else did_you_mean(written, folder.names)
            count = f"{len(names)} pictures" if names else "no picture"
            where = printable(folder.root)
            raise InputError(f"{at}: {count} {printable(written)!r} in {where}{hint}")
        name = names[0]
        if not column and (label := same_class(label)) and label not in classes:
            hint = did_you_mean(label, folder.class_names)
            hint = hint or f"; there are {', '.join(map(printable, folder.class_names))}"
            raise InputError(f"{at}: unknown class {printable(label)!r}{hint}")
        if name in corrections:
            raise InputError(f"{at}: {printable(name)} was named before; keep one line of the two")
        if column and label:
            cells.append((at, label))
            corrections[name] = column.read_cells([(at, label)], folder.class_names)[1][0]
        else:
            corrections[name] = classes.index(label) if label else None
    if column:
        column.refuse_thousands(cells, path)
    return {name: corrections[name] for name in folder.names if name in corrections}


def apply_corrections(data: DataSet, corrections: Corrections) -> DataSet:
    train, test = (_corrected(images, corrections) for images in (data.train, data.test))
    val = data.val and _corrected(data.val, corrections)
    before, after = (
        images_by_class(images.extra, images.labels, data.num_classes)
        for images in (data.train, train)
    )
    lost = [k for k, count in enumerate(before) if count and not after[k]]
    left = {"test picture": len(test), "validation picture": 1 if val is None else len(val)}
    empty = [what for what, count in left.items() if not count]
    if lost or empty:
        what = f"training picture of {data.class_names[lost[0]]!r}" if lost else empty[0]
        raise InputError(f"data.corrections leave no {printable(what)}; remove some lines")
    return replace(arranged(data.class_names, train, test, val=val), contents=data.contents)


def describe_corrections(corrections: Corrections, file: str | None, folder: PictureFolder) -> str:
    numbers = next(iter(folder.extra.values()), torch.tensor(folder.labels))
    before = dict(zip(folder.names, numbers, strict=True))
    given = {name: label for name, label in corrections.items() if label is not None}
    num_changed = sum(bool((before[name] != label).any()) for name, label in given.items())
    changed = quantity(num_changed, "label")
    out = quantity(len(corrections) - len(given), "picture")
    where = printable(corrections_file(str(file), folder))
    return f"{printable(folder.root)}: {changed} corrected, {out} left out ({where})"


def _corrected(images: Images, corrections: Corrections) -> Images:
    kept = [row for row, name in enumerate(images.names) if corrections.get(name, 0) is not None]
    return relabelled(images, corrections)[torch.tensor(kept, dtype=torch.long)]


def relabelled(images: Images, corrections: Corrections) -> Images:
    """Return images with their corrected labels; -1 for those that are left out."""
    labels = list[int]()
    extra = {kind: numbers.clone() for kind, numbers in images.extra.items()}
    for row, (name, label) in enumerate(zip(images.names, images.labels.tolist(), strict=True)):
        correction = corrections.get(name, label)
        if isinstance(correction, Tensor):
            for numbers in extra.values():
                numbers[row] = correction
            correction = label
        labels.append(-1 if correction is None else correction)
    return replace(images, labels=torch.tensor(labels, dtype=torch.long), extra=extra)
