"""The captions of a folder of pictures, from files named ``captions.csv``.

Axes: N pictures, L bytes.
"""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import listed, printable

NAME = "captions.csv"
COLUMNS = ["file", "caption"]
LONGEST = 4096
"""Most bytes that the captions of one picture may take together."""


def is_captions(name: str) -> bool:
    """Return whether a file of this name holds captions."""
    return name.lower() == NAME


def read_captions(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    """Return the captions of pictures: (N, L) uint8, UTF-8 bytes padded with 0.

    The captions of a picture with several lines are separated by a newline, in the order of the
    file. Spaces and line breaks inside a caption become one space.

    Args:
        root: The folder of the pictures, for messages.
        files: Paths of CSV files with the columns ``file`` and ``caption``. A file name is relative
            to the folder of the CSV file.
        pictures: Paths of the pictures.

    Raises:
        InputError: A file is not such a CSV file, names a missing picture, or a picture has no
            caption or too many.
    """
    captions: dict[str, list[str]] = {os.path.normpath(path): [] for path in pictures}
    for path in sorted(files):
        for line, picture, caption in _lines(Path(path)):
            if picture in captions:
                captions[picture].append(caption)
            elif not os.path.exists(picture):
                where = printable(os.path.relpath(picture, Path(path).parent))
                raise InputError(f"{printable(path)}, line {line}: there is no picture {where}")
    if without := sorted(path for path, texts in captions.items() if not texts):
        names = [printable(os.path.relpath(path, root)) for path in without]
        raise InputError(
            f"{printable(root)}: {len(without):,} of {len(pictures):,} pictures have no caption:\n"
            f"{listed(names)}\nAdd a line for each to {NAME}, or remove {NAME}"
        )
    return _as_bytes(root, captions)


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the path of the picture and the caption."""
    try:
        text = picture_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{printable(path)} is not UTF-8 text; save it as UTF-8") from error
    if "\0" in text:
        raise InputError(f"{printable(path)} holds a zero byte; it is not a text file")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        if next(reader, None) != COLUMNS:
            raise InputError(f"{printable(path)}: the first line must be {','.join(COLUMNS)}")
        for row in reader:
            if row:
                yield (reader.line_num, *_checked(path, reader.line_num, row))
    except csv.Error as error:
        raise InputError(f"{printable(path)}, line {reader.line_num}: {error}") from error


def _checked(path: Path, line: int, row: list[str]) -> tuple[str, str]:
    where = f"{printable(path)}, line {line}"
    if len(row) != len(COLUMNS):
        raise InputError(f"{where}: {len(row)} columns; put a caption with a comma in quotes")
    name, caption = row[0], " ".join(row[1].split())
    if not name or not caption:
        raise InputError(f"{where}: the {COLUMNS[bool(name)]} is empty")
    return os.path.normpath(path.parent / name), caption


def _as_bytes(root: Path, captions: dict[str, list[str]]) -> Tensor:
    rows = ["\n".join(texts).encode() for texts in captions.values()]
    length = max(map(len, rows))
    if length > LONGEST:
        path = next(path for path, row in zip(captions, rows, strict=True) if len(row) == length)
        name = printable(os.path.relpath(path, root))
        raise InputError(
            f"{printable(root)}: the captions of {name} have {length:,} bytes, at most {LONGEST:,}"
            " are allowed"
        )
    whole = b"".join(row.ljust(length, b"\0") for row in rows)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8).view(len(rows), length)
