"""Captions as tokens. Axes: n captions, L tokens of a caption, V words of a vocabulary."""

import re
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

PAD, START, END, UNKNOWN = range(4)
"""Numbers of the special tokens. Padding follows the end of a caption."""
NUM_SPECIAL = 4
WORD_BYTES = 32
"""Bytes of a word that a vocabulary keeps; longer words are cut."""
WORD = re.compile(r"\w+|[^\w\s]")

Encode = Callable[[str], list[int]]
"""Text -> tokens without start and end."""


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return [_cut(word) for word in WORD.findall(text.lower())]


def _cut(word: str) -> str:
    return word.encode()[:WORD_BYTES].decode(errors="ignore")


def word_encoder(vocabulary: Sequence[str]) -> Encode:
    """Return the function that numbers words; a word that the vocabulary lacks is ``UNKNOWN``."""
    numbers = {word: NUM_SPECIAL + i for i, word in enumerate(vocabulary)}
    return lambda text: [numbers.get(word, UNKNOWN) for word in split_words(text)]


def encode_bytes(text: str) -> list[int]:
    """Return the UTF-8 bytes of a text as tokens."""
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
