"""Columns of text that fit a terminal: no word is broken, and no number is wrapped.

Where a table is too wide, cells with words wrap between words. If this is not enough, further
columns follow in a second block below. Only a name that is longer than a line is shortened.
"""

import itertools
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vitcli.runner.text import shorten

NO_BREAK = "\0"
"""A space at which no line may break. No text of a table holds this character."""
GAP = "  "
"""Between columns, and before the cells below a name."""
MIN_WORDS = 20
"""Width to which cells with words are wrapped before columns move into another block."""
LABEL = re.compile(r"(\s*\S.*?\s{2,})(?=\S)")
"""The label of a line such as ``folder    runs/...``, with the spaces after it."""
UNBROKEN = re.compile(r"\[[^\]]{1,30}\]|\d %|vitcli [a-z-]+ [^;,)]*|(?<!\w)'[^'\n]{1,60}'(?!\w)")
"""An interval, a percentage, and commands and quotes, which a terminal copies as one line."""


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    """A column; the header and each cell are lists of lines."""

    head: list[str]
    cells: list[list[str]]
    right: bool

    @property
    def width(self) -> int:
        return max(len(line) for lines in (self.head, *self.cells) for line in lines)


@dataclass(frozen=True, kw_only=True)
class Block:
    """The lines of a table, or of some of its columns."""

    head: list[str]
    body: list[str]

    @property
    def width(self) -> int:
        return max(map(len, [*self.head, *self.body]))


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of at most ``width`` characters (0: no limit).

    No line breaks inside a word or inside what ``UNBROKEN`` matches.
    """
    text = UNBROKEN.sub(lambda found: found[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(
        text,
        width or len(text) + 1,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]


def wrap_line(line: str, width: int) -> str:
    """Return a line wrapped between words; the value of a label stays in its column."""
    if len(line) <= width:
        return line
    margin = line[: len(line) - len(line.lstrip())][: width // 4]
    found = LABEL.match(line)
    if not found or len(found[1]) > width // 2:
        return "\n".join(wrap(line, width, margin + GAP))
    label, value = found[1], line[len(found[1]) :]
    room = width - len(label)
    if max(map(len, parts := wrap(value, room))) <= room:
        return label + f"\n{' ' * len(label)}".join(parts)
    below = margin + 2 * GAP
    parts = wrap(value, width - len(below))
    return "\n".join([label.rstrip(), *(below + part for part in parts)])


def make_column(header: str, cells: Sequence[str], *, right: bool, limit: int) -> TextColumn:
    """Return a column with cells of at most ``limit`` characters (0: no limit)."""
    wrapped = [wrap(cell, limit) for cell in cells]
    widest = max((len(line) for lines in wrapped for line in lines), default=0)
    head = wrap(header, max(widest, *map(len, header.split()), 1))
    return TextColumn(head=head, cells=wrapped, right=right)


def narrow(make: Callable[[int], list[TextColumn]], width: int) -> list[TextColumn]:
    """Return columns with the widest cells that fit, or else with the narrowest cells.

    Args:
        make: Returns the columns whose words are wrapped at a limit.
        width: Characters of a line.
    """
    for limit in range(width, MIN_WORDS, -1):
        if total_width(columns := make(limit)) <= width:
            return columns
    return make(MIN_WORDS)


def total_width(columns: Sequence[TextColumn]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def lay_out(columns: Sequence[TextColumn], width: int | None = None) -> list[Block]:
    """Return the table in one block or, if it is wider than ``width``, in several.

    Every block repeats the first column: beside the others, or above them where they do not fit
    beside it and this needs fewer blocks.
    """
    if width is None or total_width(columns) <= width:
        return [_beside(columns)]
    first, *others = columns
    indented = width - len(GAP)
    above = _pack([_shortened(column, indented) for column in others], indented)
    room = indented - first.width
    if all(column.width <= room for column in others):
        beside = _pack(others, room)
        if len(beside) <= len(above):
            return [_beside([first, *group]) for group in beside]
    first = _shortened(first, width)
    return [
        _beside([first, *group]) if total_width([first, *group]) <= width else _above(first, group)
        for group in above
    ]


def _pack(columns: Sequence[TextColumn], room: int) -> list[list[TextColumn]]:
    """Return the columns in groups that are not wider than ``room``."""
    groups: list[list[TextColumn]] = [[]]
    for column in columns:
        if groups[-1] and total_width([*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    return groups


def _shortened(column: TextColumn, limit: int) -> TextColumn:
    head, *cells = [
        [shorten(line, limit) for line in lines] for lines in (column.head, *column.cells)
    ]
    return replace(column, head=head, cells=cells)


def _beside(columns: Sequence[TextColumn]) -> Block:
    top = max(len(column.head) for column in columns)
    heads = [[""] * (top - len(column.head)) + column.head for column in columns]
    rows = zip(*(column.cells for column in columns), strict=True)
    return Block(
        head=_aligned(heads, columns),
        body=[line for row in rows for line in _aligned(row, columns)],
    )


def _above(first: TextColumn, others: Sequence[TextColumn]) -> Block:
    """Return rows that begin with a line of the first column only."""
    if not others:
        return _beside([first])
    below = _beside(others)
    rows = zip(first.cells, zip(*(column.cells for column in others), strict=True), strict=True)
    body = [
        line
        for name, cells in rows
        for line in [*name, *(GAP + line for line in _aligned(cells, others) if line)]
    ]
    return Block(head=[*first.head, *(GAP + line for line in below.head)], body=body)


def _aligned(row: Sequence[Sequence[str]], columns: Sequence[TextColumn]) -> list[str]:
    """Return the lines of a row, whose cells have one line or more."""
    lines = []
    for cells in itertools.zip_longest(*row, fillvalue=""):
        parts = [
            cell.rjust(column.width) if column.right else cell.ljust(column.width)
            for cell, column in zip(cells, columns, strict=True)
        ]
        lines.append(GAP.join(parts).rstrip())
    return lines
