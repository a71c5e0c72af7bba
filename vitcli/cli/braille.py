"""Curves of dots in braille characters: each character is a field of 2 x 4 dots."""

from collections.abc import Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot, by row and column; see the Unicode block Braille Patterns."""
BLANK = 0x2800


@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers at two opposite edges of a picture."""

    low: float
    high: float

    def place(self, value: float, count: int) -> int:
        """Return the place of a value among ``count`` dots, from 0."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(share * (count - 1))


def range_of(values: Sequence[float]) -> Range:
    return Range(low=min(values), high=max(values))


def draw(curves: Sequence[Points], width: int, height: int, x: Range, y: Range) -> list[list[int]]:
    """Return a picture of curves, (height, width), of character codes.

    Points are joined by lines. The first character of a row is at the left, that of the first row
    at the top.
    """
    picture = [[BLANK] * width for _ in range(height)]
    for points in curves:
        dots = [(x.place(a, 2 * width), y.place(b, 4 * height)) for a, b in points]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            for column, row in line(start, end):
                top = 4 * height - 1 - row
                picture[top // 4][column // 2] |= BITS[top % 4][column % 2]
    return picture


def line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * i / steps),
            round(start[1] + (end[1] - start[1]) * i / steps),
        )
        for i in range(steps + 1)
    ]
