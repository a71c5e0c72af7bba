"""Files beside pictures, and columns of their table, as ``Images.extra``. Plugins add the kinds.

Axes: N pictures, K classes or numbers of a picture.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitcli.core.data.source import DataSet
from vitcli.core.spec import TaskSpec
from vitcli.plugin import Registry
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.report.tables import csv_text, delimiter_of, maybe_thousands
from vitcli.runner.text import listed, printable


@dataclass(frozen=True, kw_only=True)
class ExtraReader:
    """A kind of files beside the pictures of a folder."""

    is_own: Callable[[str], bool]
    """Whether a file of this name, in lower case, is of this kind, and so is not a picture."""
    read: Callable[[Path, Sequence[str], Sequence[str]], Tensor]
    """Takes the root of the folder, for messages, and the paths of files of this kind and of the
    pictures. Returns a tensor whose row i belongs to picture i. Raises InputError if a picture has
    no row."""
    random: Callable[[int, torch.Generator], Tensor]
    """Makes a tensor for a number of random pictures, to measure the time of a step."""


Cell = tuple[str, str]
"""The place of a cell of a table, such as ``ages.csv, line 3``, and its text."""


@dataclass(frozen=True, kw_only=True)
class ColumnReader(ExtraReader):
    """A column of a table of pictures in the place of ``label``, such as ``labels``."""

    column: str
    """Its name in the first line of the table."""
    read_cells: Callable[[Sequence[Cell], Sequence[str] | None], tuple[tuple[str, ...], Tensor]]
    """Takes the cells of N pictures, and the names of the classes, or None if the cells name them.
    Returns the names of the K outputs of a model, and numbers (N, K). Raises InputError with the
    place of a cell that it cannot read."""
    task: str
    """The task that learns these numbers."""
    is_classes: bool = False
    """Whether the numbers are 1 for the classes of a picture, and 0 for the others."""
    is_own: Callable[[str], bool] = lambda name: False
    read: Callable[[Path, Sequence[str], Sequence[str]], Tensor] = lambda root, files, pictures: (
        torch.empty(len(pictures), 0)
    )

    def refuse_thousands(self, cells: Sequence[Cell], file: Path) -> None:
        texts = [] if self.is_classes else [text for _, text in cells]
        if unclear := maybe_thousands(texts, delimiter_of(csv_text(file))):
            raise InputError(
                f"{cells[texts.index(unclear)][0]}: has the {self.column} {unclear!r} a sign"
                f" between thousands? Write {unclear.replace('.', '')}, or separate the cells by"
                " commas if points are decimal"
            )


EXTRAS = Registry[ExtraReader]("extra")
"""Key of ``Images.extra`` -> its reader."""


def refuse_pictures(root: Path, bad: Sequence[str], total: int, what: str, hint: str) -> None:
    if bad:
        count = f"{len(bad):,} of {total:,} pictures"
        raise InputError(f"{printable(root)}: {count} {what}:\n{listed(bad)}\n{hint}")


def kind_of(name: str) -> str | None:
    """Return the name of the row of ``EXTRAS`` that a file belongs to; None for a picture."""
    return next((kind for kind, row in EXTRAS.items() if row.is_own(name.lower())), None)


def read_extras(
    root: Path, files: Sequence[str], pictures: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the extra tensors of the pictures, in their order, and why a kind has no tensor.

    No files of a kind give no tensor. Files that are damaged, or do not cover all pictures, give
    the reason.
    """
    tensors: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for kind, row in EXTRAS.items():
        if chosen := [path for path in files if kind_of(os.path.basename(path)) == kind]:
            try:
                tensors[kind] = row.read(root, chosen, pictures)
            except InputError as error:
                reasons[kind] = str(error)
    return tensors, reasons


def columns() -> dict[str, str]:
    """Return the columns that may take the place of ``label``: name -> row of ``EXTRAS``."""
    return {row.column: kind for kind, row in EXTRAS.items() if isinstance(row, ColumnReader)}


def column_of(extra: Mapping[str, Tensor]) -> ColumnReader | None:
    """Return the column whose numbers images have instead of one label each."""
    rows = (EXTRAS.get(kind) for kind in extra)
    return next((row for row in rows if isinstance(row, ColumnReader)), None)


def refuse_other_task(task: TaskSpec, data: DataSet) -> None:
    """Refuse a task that would take the strata of ``rarest_classes`` for labels."""
    row = column_of(data.train.extra)
    if row and task.row.uses_labels and task.name != row.task:
        raise ConfigError(
            f"task.name: {printable(data.name)} has a column {row.column!r}, which only task"
            f" {row.task!r} reads, not {task.name!r}; type: -s task.name={row.task}"
        )


def rarest_classes(numbers: Tensor) -> list[int]:
    """Return the rarest class of each picture, by which splits are balanced: (N, K) -> N indices.

    A picture of no class counts to the most frequent class. With one number, all are equal.
    """
    counts = (numbers > 0).sum(0).float()
    shares = torch.where(numbers > 0, counts, torch.inf)
    rarest = torch.where((numbers > 0).any(1), shares.argmin(1), counts.argmax())
    labels: list[int] = rarest.tolist()
    return labels


def images_by_class(extra: Mapping[str, Tensor], labels: Tensor, num_classes: int) -> list[int]:
    """Return the number of images of each class; an image counts for all its classes."""
    row, counts = column_of(extra), labels.bincount(minlength=num_classes)
    if row and row.is_classes:
        (numbers,) = extra.values()
        counts = numbers.sum(0).long()
    return [int(count) for count in counts]
