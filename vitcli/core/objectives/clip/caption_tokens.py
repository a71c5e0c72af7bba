"""The captions of training images as tensors on their device, and of the images of a split.

Axes: B batch, N images, K classes, S subjects, V variants of a caption, L tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.core.objectives.clip.captions import CaptionBook, Variants
from vitcli.core.objectives.clip.tokens import Encode, read_texts, tokenize


class Drawn(NamedTuple):
    """The captions of B images: their tokens, and two numbers of each caption."""

    tokens: Tensor
    """(B, L) int64"""
    caption: Tensor
    """(B,) int64; equal captions have equal numbers."""
    subject: Tensor
    """(B,) int64: what the caption says."""


def number_texts(texts: Sequence[str]) -> Tensor:
    """Return a number for each text; equal texts have equal numbers, from 0 in order."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(text, len(numbers)) for text in texts])


class GeneratedCaptions:
    """The captions of a book."""

    def __init__(self, book: CaptionBook, variants: Variants, encode: Encode, length: int) -> None:
        texts = [text for row in variants for text in row]
        self.texts = texts
        self.count = len(variants[0])
        self.tokens = tokenize(texts, encode, length)  # (S V, L)
        self.numbers = number_texts(texts)
        self.subjects = torch.tensor(book.subjects)  # (K, choices)

    def to(self, device: torch.device) -> "GeneratedCaptions":
        """Move the tensors to a device and return this object."""
        for name in ("tokens", "numbers", "subjects"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def choose(self, labels: Tensor, choice: Tensor) -> Tensor:
        """Return a subject of each class, (B,), from any non-negative integers ``choice``."""
        return self.subjects[labels, choice % self.subjects.shape[1]]

    def draw(self, subject: Tensor, variant: Tensor) -> Drawn:
        """Return a caption of each subject, from any non-negative integers ``variant``."""
        place = subject * self.count + variant % self.count
        return Drawn(self.tokens[place], self.numbers[place], subject)


class StoredCaptions:
    """The captions that belong to images (``Images.extra``)."""

    def __init__(self, images: Images, encode: Encode, length: int) -> None:
        rows = read_texts(images.extra["caption"].cpu())
        device = images.labels.device
        counts = torch.tensor([len(row) for row in rows])
        self.texts = [text for row in rows for text in row]
        self.counts = counts.to(device)  # (N,)
        self.starts = (counts.cumsum(0) - counts).to(device)
        self.tokens = tokenize(self.texts, encode, length).to(device)
        self.numbers = number_texts(self.texts).to(device)

    def draw(self, index: Tensor, variant: Tensor) -> Drawn:
        """Return a caption of each image, from any non-negative integers ``variant``."""
        place = self.starts[index] + variant % self.counts[index]
        return Drawn(self.tokens[place], self.numbers[place], self.numbers[place])
