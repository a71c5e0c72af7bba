"""Captions of one's own pictures (``captions.csv``), and captions as tokens.

The tokens are those of a vocabulary's words, and of all training images on their device.

Axes: n captions, L tokens of a caption, B batch, N images, K classes, S subjects, V variants.
V is also the number of words of a vocabulary.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitcli.runner.data.extras import ExtraReader, refuse_pictures
from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_lines
from vitcli.runner.text import printable

PAD, START, END, UNKNOWN = range(4)
"""Numbers of the special tokens. Padding follows the end of a caption."""
NUM_SPECIAL = 4
WORD_BYTES = 32
"""Bytes of a word that a vocabulary keeps; longer words are cut."""
WORD = re.compile(r"\w+|[^\w\s]")

Encode = Callable[[str], list[int]]
"""Text -> tokens without start and end."""
ToTokens = Callable[[Sequence[str]], Tensor]
"""Captions -> tokens (n, L) on the device of the model."""


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    words = WORD.findall(text.lower())
    return [word.encode()[:WORD_BYTES].decode(errors="ignore") for word in words]


def word_encoder(vocabulary: Sequence[str]) -> Encode:
    """Return the function that numbers words; a word that the vocabulary lacks is ``UNKNOWN``."""
    numbers = {word: NUM_SPECIAL + i for i, word in enumerate(vocabulary)}
    return lambda text: [numbers.get(word, UNKNOWN) for word in split_words(text)]


def encode_bytes(text: str) -> list[int]:
    return [NUM_SPECIAL + byte for byte in text.encode()]


def tokenize(texts: Iterable[str], encode: Encode, length: int) -> Tensor:
    """Return captions as tokens (n, L) int64: start, at most L - 2 tokens, end, padding."""
    rows = []
    for text in texts:
        tokens = [START, *encode(text)[: length - 2], END]
        rows.append(tokens + [PAD] * (length - len(tokens)))
    return torch.tensor(rows, dtype=torch.long).view(-1, length)


def to_table(words: Sequence[str], size: int) -> Tensor:
    """Return a vocabulary as bytes (V, 32) uint8, one word a row, for ``size`` words."""
    rows = [word.encode().ljust(WORD_BYTES, b"\0") for word in words]
    rows += [bytes(WORD_BYTES)] * (size - len(rows))
    return torch.tensor([list(row) for row in rows], dtype=torch.uint8).view(size, WORD_BYTES)


def from_table(table: Tensor) -> list[str]:
    """Return the words of a table, which ends at its first empty row."""
    rows = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in table.tolist()]
    return rows[: rows.index("")] if "" in rows else rows


def read_texts(captions: Tensor) -> list[list[str]]:
    """Return the captions of each image from ``Images.extra["caption"]``: (N, L) uint8."""
    rows = (bytes(row).rstrip(b"\0").decode(errors="replace") for row in captions.tolist())
    return [row.split("\n") for row in rows]


class Drawn(NamedTuple):
    """The captions of B images: their tokens, and two numbers of each caption."""

    tokens: Tensor
    """(B, L) int64"""
    caption: Tensor
    """(B,) int64; captions of equal words have equal numbers, from 0 in the order of the texts."""
    subject: Tensor
    """(B,) int64: what the caption says."""


class Captions:
    """The captions of subjects or of images, by default on the device of the model."""

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        to_tokens: ToTokens,
        device: torch.device | None = None,
    ) -> None:
        counts = torch.tensor([len(row) for row in rows])
        texts = [text for row in rows for text in row]
        self.tokens = to_tokens(texts).to(device)
        device = self.tokens.device
        self.counts = counts.to(device)
        self.starts = (counts.cumsum(0) - counts).to(device)
        said = [" ".join(split_words(text)) for text in texts]  # capital letters are equal
        numbers = {text: number for number, text in enumerate(dict.fromkeys(said))}
        self.numbers = torch.tensor([numbers[text] for text in said], device=device)

    def draw(self, row: Tensor, variant: Tensor) -> Drawn:
        """Return a caption of each row, from any non-negative integers ``variant``."""
        place = self.starts[row] + variant % self.counts[row]
        return Drawn(self.tokens[place], self.numbers[place], row)


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
