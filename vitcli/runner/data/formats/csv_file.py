"""Pictures with labels in a CSV file: ``path``, ``label`` and perhaps ``split`` and ``group``.

A column that a plugin reads, such as ``labels``, may take the place of ``label``.
"""

import hashlib
import os
import unicodedata
from collections.abc import Container, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitcli.runner.data.extras import EXTRAS, Cell, ColumnReader, columns, rarest_classes
from vitcli.runner.data.labels import in_order, not_used, refuse_names, without_blanks
from vitcli.runner.data.listing import PictureFolder, split_of, splits_in_order
from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_lines, csv_text, read_csv, unguarded
from vitcli.runner.text import composed, did_you_mean, printable

COLUMNS, OPTIONAL = ("path", "label"), ("split", "group")


def list_csv(
    path: Path, class_names: Sequence[str] | None = None, *, exact: bool = False
) -> PictureFolder:
    """List the pictures of a CSV file; ``exact`` keeps the cells as they are, see ``read_csv``."""
    root, lines = Path(os.path.abspath(path.parent)), dict[str, tuple[str, str, str]]()
    unused, kind, places = list[str](), column_in(path, exact), list[str]()
    named = ("path", "label" if kind is None else kind.column)
    rows = csv_lines(path, named, OPTIONAL, exact=exact, strip=False, on_unused=unused.extend)
    for at, *cells in rows:
        written, label, split, group = cells
        if not exact:
            written, label, split, group = (unguarded(cell.rstrip()) for cell in cells)
        picture = picture_at(at, written, root, lines)
        if not label and kind is None:
            raise InputError(f"{at}: the label is empty")
        if split and not split_of(split):
            hint = did_you_mean(split, ("train", "val", "test")) or "; there are train, val, test"
            raise InputError(f"{at}: unknown split {printable(split)!r}{hint}")
        if lines and bool(split) != bool(next(iter(lines.values()))[1]):
            raise InputError(f"{at}: either each line has a split, or none has")
        text = cells[1] if kind is None else label
        lines[picture] = composed(text), split_of(split) or "", composed(group)
        places.append(at)
    where = printable(path)
    if not lines:
        raise InputError(f"{where} names no picture")
    texts, splits, groups = zip(*lines.values(), strict=True)
    try:
        order, num_train, num_test, num_val = splits_in_order(splits)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    notes, extra = tuple[str, ...](), dict[str, Tensor]()
    if kind is None:
        labels, notes = _labels(texts, exact)
        names = _class_names(where, labels, order[:num_train], class_names)
        number = {name: label for label, name in enumerate(names)}
        numbers = [number[labels[row]] for row in order]
        facts: tuple[object, ...] = (labels, splits, groups)
    else:
        written_at: list[Cell] = [(places[row], texts[row]) for row in order]
        names, trained = kind.read_cells(written_at[:num_train], class_names)
        held_out = kind.read_cells(written_at[num_train:], names)[1]
        kind.refuse_thousands(written_at, path)
        extra = {columns()[kind.column]: torch.cat([trained, held_out])}
        numbers = rarest_classes(extra[columns()[kind.column]])
        facts = (kind.column, texts, splits, groups)
    paths = [*lines]
    return PictureFolder(
        root=root,
        class_names=names,
        paths=[paths[row] for row in order],
        labels=numbers,
        groups=tuple(groups[row] for row in order) if any(groups) else (),
        num_train=num_train,
        num_test=num_test,
        num_val=num_val,
        extra=extra,
        facts=hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest(),
        notes=(*notes, *not_used(path, unused)),
    )


def picture_at(at: str, written: str, root: Path, named: Container[str]) -> str:
    forms = [written]
    if not written.isascii():
        forms += [unicodedata.normalize("NFC", written), unicodedata.normalize("NFD", written)]
    places = [os.path.normpath(root / form) for form in forms]
    picture = next(filter(os.path.isfile, places), places[0])
    if not picture.startswith(os.path.join(root, "")):
        where = f"{printable(written)} is outside the folder of the file"
        raise InputError(f"{at}: {where}; move the file to a folder above all pictures")
    if picture in named:
        raise InputError(f"{at}: {printable(written)} was named before; keep one line")
    if not os.path.isfile(picture):
        raise InputError(f"{at}: there is no picture {printable(picture)}")
    return picture


def column_in(path: Path, exact: bool) -> ColumnReader | None:
    """Return the column that a table has instead of ``label``; a column ``label`` goes first."""
    where, known = printable(path), columns()
    _, names = next(read_csv(csv_text(path), where, exact=exact), ("", list[str]()))
    header = [name.casefold() for name in names]
    chosen = [name for name in known if name in header]
    if "label" in header or not chosen:
        return None
    if len(chosen) > 1:
        raise InputError(f"{where}, line 1: columns {' and '.join(chosen)}; keep one of them")
    row = EXTRAS[known[chosen[0]]]
    assert isinstance(row, ColumnReader)
    return row


def _labels(texts: Sequence[str], exact: bool) -> tuple[list[str], tuple[str, ...]]:
    labels, notes = without_blanks(texts)
    if not exact:  # "'-x" is "-x" as a spreadsheet needs it, unless there is a class "-x", too
        known = {*labels}
        labels = [label if unguarded(label) in known else unguarded(label) for label in labels]
    return labels, notes


def _class_names(
    where: str, labels: Sequence[str], trained: Sequence[int], given: Sequence[str] | None
) -> tuple[str, ...]:
    names, _ = without_blanks(given or ())
    try:
        refuse_names(names or [*{*labels}])
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    learned = {labels[row] for row in trained}
    if strange := sorted({*labels} - learned):
        raise InputError(f"{where}: class {printable(strange[0])!r} has no training picture")
    if len(learned) < 2:
        raise InputError(f"{where}: only one class, {printable(*learned)!r}; two are needed")
    return tuple(names or in_order(learned))
