"""Captions of one's own pictures: ``captions.csv``. Axes: N pictures, L bytes."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitcli.runner.data.extras import ExtraReader, refuse_pictures
from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_lines
from vitcli.runner.text import printable

CAPTIONS = "captions.csv"
COLUMNS = ["file", "caption"]
LONGEST = 4096
"""Most bytes that the captions of one picture may take together."""


def read_captions(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    """Return the captions of pictures: (N, L) uint8, UTF-8 bytes padded with 0.

    ``files`` are CSV files with the columns ``file`` and ``caption``; a file name is relative to
    the folder of the CSV file. The captions of a picture with several lines are separated by a
    newline, in the order of the file. Spaces and line breaks inside a caption become one space.
    """
    captions: dict[str, list[str]] = {os.path.normpath(path): [] for path in pictures}
    for path in map(Path, sorted(files)):
        for at, name, text in csv_lines(path, COLUMNS):
            picture, caption = os.path.normpath(path.parent / name), " ".join(text.split())
            if not caption:
                raise InputError(f"{at}: the caption is empty")
            if picture in captions:
                captions[picture].append(caption)
            elif not os.path.exists(picture):
                raise InputError(f"{at}: there is no picture {printable(name)}")
    without = sorted(path for path, texts in captions.items() if not texts)
    names = [printable(os.path.relpath(path, root)) for path in without]
    hint = f"Add a line for each to {CAPTIONS}, or remove {CAPTIONS}"
    refuse_pictures(root, names, len(pictures), "have no caption", hint)
    rows = {path: "\n".join(texts).encode() for path, texts in captions.items()}
    longest = max(rows, key=lambda path: len(rows[path]))
    length = len(rows[longest])
    if length > LONGEST:
        raise InputError(
            f"{printable(root)}: the captions of {printable(os.path.relpath(longest, root))} have"
            f" {length:,} bytes, at most {LONGEST:,} are allowed"
        )
    whole = b"".join(row.ljust(length, b"\0") for row in rows.values())
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8).view(len(rows), length)


CAPTION = ExtraReader(
    is_own=lambda name: name == CAPTIONS,
    read=read_captions,
    random=lambda count, generator: torch.randint(  # 32 small letters
        97, 123, (count, 32), dtype=torch.uint8, generator=generator
    ),
)
