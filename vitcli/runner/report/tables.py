"""Tables of plain strings as text, Markdown and CSV, their cells in LaTeX and HTML; CSV is read."""

import csv
import html
import io
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitcli.runner.errors import InputError
from vitcli.runner.files import read_bounded
from vitcli.runner.text import (
    MINUS,
    NO_BREAK,
    composed,
    did_you_mean,
    ignore_message,
    printable,
    shorten,
    unbroken,
    wrap,
    wrap_line,
)

PLUS_MINUS = "\u00b1"
DASH = "\u2014"
TEXT_WIDTH = 120
"""Width of the caption and the notes, in characters. The columns may be wider."""
CELL_WIDTHS = {"l": 14, "r": 24}
"""Width of cells with words (l) and with numbers (r), in text. A row's first cell is not
wrapped."""
MAX_BYTES = 1 << 28
DELIMITERS = ",;\t"
UNNAMED = re.compile(r"(Unnamed: \d+.*)?")
"""Header of a column without a name, such as the index of a data frame of pandas."""
PREAMBLE = re.compile(r"sep=|# ", re.IGNORECASE)
"""How lines before the header begin that say nothing of the cells."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([.,]\d{3})+", re.ASCII)
"""A number with signs between thousands, or one with three decimals."""
FORMULA = re.compile(r"'*[=+\-@\t\r].", re.DOTALL)
"""How text begins that a spreadsheet would compute, perhaps behind the signs that prevent it."""


@dataclass(frozen=True)
class Column:
    header: str
    align: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of plain strings; the first cell of a row is the row's header."""

    name: str = ""
    caption: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    legend: str = ""
    """The one line below the table in LaTeX, where the notes are comments."""


def make_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = (), **fields: Any
) -> Table:
    right = {*numeric}
    columns = (Column(head, "r" if i in right else "l") for i, head in enumerate(header))
    return Table(columns=tuple(columns), rows=tuple(map(tuple, rows)), **fields)


def plain(table: Table, width: int | None) -> str:
    columns = tuple(replace(column, header=printable(column.header)) for column in table.columns)
    rows = tuple(tuple(printable(ascii_signs(cell)) for cell in row) for row in table.rows)
    lines = lay_out(replace(table, columns=columns, rows=rows), width)
    return "\n".join([table.caption, *lines] if table.caption else lines)


def _one_line(text: str) -> str:
    return " ".join(printable(text, substitute=" ").split())


def to_ascii(text: str) -> str:
    """Return text in ASCII: signs as - and +-, letters without accents, the rest as escapes."""
    return "".join(map(_fold, ascii_signs(_one_line(text))))


def ascii_signs(text: str) -> str:
    return text.replace(MINUS, "-").replace(PLUS_MINUS, "+-")


def _fold(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    letters = "".join(c for c in parts if not unicodedata.combining(c))
    return letters.encode("ascii", "backslashreplace").decode()


def to_text(table: Table, width: int | None = None) -> str:
    """Return aligned columns in ASCII between rules; long cells take several lines."""
    columns = tuple(Column(to_ascii(column.header), column.align) for column in table.columns)
    rows = tuple(tuple(map(to_ascii, row)) for row in table.rows)
    lines = lay_out(Table(columns=columns, rows=rows), width, is_study=True)
    rule = "-" * min(width or sys.maxsize, max(map(len, lines)))
    limit = min(width or TEXT_WIDTH, TEXT_WIDTH)
    notes = [line for note in table.notes for line in wrap(to_ascii(note), limit, indent="  ")]
    return "\n".join([*wrap(to_ascii(table.caption), limit), rule, *lines, rule, *notes])


def lay_out(table: Table, width: int | None = None, *, is_study: bool = False) -> list[str]:
    """Return the lines of aligned columns in which no word and no number is broken.

    Cells with words wrap to fit the width. A table that is wider still is a list: each row is its
    first cell, and below it a line for each other column. Only a word in these lines that is longer
    than a line is shortened.
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    limits = [_limits(table, i) for i, _ in enumerate(table.columns)]
    narrowest = sum(least for least, _ in limits) + 2 * (len(limits) - 1)
    if width is not None and narrowest > width:
        return _as_list(table, width)
    ruled = Box("\n".join(["    "] * 2 + ["----"] + ["    "] * 5), ascii=True)
    grid = Grid(
        box=ruled if is_study else None,
        padding=(0, 1 if is_study else 2, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="",
    )
    for i, (column, (least, body)) in enumerate(zip(table.columns, limits, strict=True)):
        grid.add_column(
            Text(unbroken(column.header)),
            justify="right" if column.align == "r" else "left",
            min_width=least,
            max_width=max(least, min(body, CELL_WIDTHS[column.align])) if is_study and i else None,
        )
    for row in table.rows:
        grid.add_row(*(Text(unbroken(cell)) for cell in row))
    screen = Console(
        file=io.StringIO(), width=width or 1 << 20, color_system=None, force_jupyter=False
    )
    with screen.capture() as drawn:
        screen.print(grid, crop=False)
    return [line.rstrip().replace(NO_BREAK, " ") for line in drawn.get().splitlines()]


def _limits(table: Table, i: int) -> tuple[int, int]:
    from rich.cells import cell_len  # some letters are two columns wide

    cells = [row[i] for row in table.rows]
    body = max(map(cell_len, cells), default=0)
    column = table.columns[i]
    words = [word for text in (column.header, *cells) for word in unbroken(text).split()]
    whole = body if not i else min(body, CELL_WIDTHS["r"]) if column.align == "r" else 1
    return max([*map(cell_len, words), whole, 1]), body


def _as_list(table: Table, width: int) -> list[str]:
    title, *heads = (column.header for column in table.columns)
    lines, label = [title], max(map(len, heads), default=0)
    for name, *cells in table.rows:
        lines.append(name)
        for head, cell in zip(heads, cells, strict=True):
            if cell:
                whole = cell if " " in cell else shorten(cell, width - 6)
                lines += wrap_line(f"  {head:<{label}}  {whole}", width).split("\n")
    return lines


def to_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV with a line feed after each; None is an empty cell.

    Text that a spreadsheet would compute begins with an apostrophe, which ``read_csv`` removes.
    """

    def guarded(cell: Any) -> Any:
        if isinstance(cell, str) and FORMULA.match(cell):
            try:
                float(cell)
            except ValueError:
                return f"'{cell}"
        return cell

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(guarded, row) for row in rows)
    return text.getvalue()


def csv_text(path: Path) -> str:
    name = printable(path)
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text; export it as CSV in UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}: cannot be read: {reason}") from error


def delimiter_of(text: str) -> str:
    """Return what separates the cells: the sign that the header has, and the line below it."""
    lines = (match[0] for match in re.finditer(r"[^\r\n]+", text))
    cells = (line for line in lines if line.strip() and not PREAMBLE.match(line))
    first = next(cells, "")
    second = next(cells, first)
    return max(DELIMITERS, key=lambda x: (min(first.count(x), second.count(x)), first.count(x)))


def read_csv(
    text: str, name: str, *, exact: bool = False, strip: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """Yield the place, for messages, and the cells of the header and of each row with text.

    Commas, semicolons or tabs separate the cells. What other programs add is left out: blanks
    around cells, columns without a name, empty cells behind the last column, and Excel's ``sep=;``
    or comments before the header. Without ``strip``, blanks at the ends of cells and the
    sign before a formula stay, for notes about them. ``exact`` keeps all cells as
    they stand in the file.
    """
    if "\0" in text:
        raise InputError(f"{name} is not a text file; export it as CSV in UTF-8")
    delimiter = delimiter_of(text)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=not exact, strict=True)
    header: list[str] = []
    named: list[int] = []
    try:
        for row in reader:
            place = f"{name}, line {reader.line_num}"
            cells = row
            if not exact and (strip or not header):
                cells = [unguarded(cell.strip()) for cell in row]
            is_preamble = not header and not exact and PREAMBLE.match(cells[0] if cells else "")
            if is_preamble or not any(map(str.strip, cells)):
                continue
            if not header:
                header = cells
                named = [i for i, head in enumerate(cells) if exact or not UNNAMED.fullmatch(head)]
            if len(cells) <= max(named, default=0) or any(cells[len(header) :]):
                also = ", but write | between labels" * ("labels" in " ".join(header).lower())
                raise InputError(
                    f"{place}: {len(cells)} cells, but the header has {len(header)}; put a text"
                    f" with a {'comma' if delimiter == ',' else repr(delimiter)} in quotes{also}"
                )
            yield place, [cells[i] for i in named]
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not a row of CSV: {error}") from error


def maybe_thousands(numbers: Sequence[str], delimiter: str) -> str | None:
    """Return a number whose sign may stand between thousands; with ``;``, commas are decimal."""
    marked = [text for text in numbers if "." in text or "," in text]
    is_unclear = delimiter == ";" or len(marked) < len(numbers) or "," in "".join(marked)
    is_unclear &= delimiter != "," and all(map(THOUSANDS.fullmatch, marked))
    return next(iter(marked), None) if is_unclear else None


def unguarded(cell: str) -> str:
    """Return a cell without the sign that keeps a spreadsheet from computing it."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def csv_lines(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    *,
    exact: bool = False,
    strip: bool = True,
    on_unused: Callable[[list[str]], object] = ignore_message,
) -> Iterator[tuple[str, ...]]:
    """Yield the place of each line of a table that a user writes, and its cells by column.

    An optional column that the file lacks is empty; ``on_unused`` receives the other columns of the
    file. See ``read_csv`` for what is read, and for ``exact`` and ``strip``.
    """
    where = printable(path)
    rows = read_csv(csv_text(path), where, exact=exact, strip=strip)
    _, names = next(rows, ("", []))
    header = [name.casefold() for name in names]
    known = [*columns, *optional]
    lacking = [name for name in known if name not in header]
    if missing := [name for name in columns if name in lacking]:
        needed = f"the first line must be {','.join(columns)}"
        raise InputError(f"{where}, line 1: no column {missing[0]!r}; {needed}")
    if twice := [name for name in known if header.count(name) > 1]:
        raise InputError(f"{where}, line 1: twice the column {twice[0]!r}; keep one of them")
    unused = [name for name in names if name.casefold() not in known]
    for name in unused:
        if hint := did_you_mean(name, lacking):
            raise InputError(f"{where}, line 1: unknown column {printable(name)!r}{hint}")
    on_unused(unused)
    places = [None if name in lacking else header.index(name) for name in known]
    for at, row in rows:
        cells = ["" if place is None else row[place] for place in places]
        if not cells[0]:
            raise InputError(f"{at}: the {columns[0]} is empty")
        yield at, *cells


def to_markdown(table: Table) -> str:
    heads = [escape_markdown(column.header) for column in table.columns]
    rows = [[escape_markdown(cell) for cell in row] for row in table.rows]
    numeric = [i for i, column in enumerate(table.columns) if column.align == "r"]
    caption = [f"**{escape_markdown(table.caption)}**", ""] if table.caption else []
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    grid = markdown_grid(heads, rows, numeric)
    return "\n".join([*caption, grid, *([""] if notes else []), *notes])


def markdown_grid(
    header: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()
) -> str:
    right = {*numeric}
    rules = ["---:" if i in right else ":---" for i, _ in enumerate(header)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rules, *rows))


def escape_markdown(text: str) -> str:
    text = ascii_signs(_one_line(text))
    # Markdown sees no markup in an underscore inside a word, nor in brackets without an address
    # behind them. A backslash there would break addresses.
    return re.sub(r"[\\`*|<>~$&]|\](?=\()|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    MINUS: "$-$",
    PLUS_MINUS: r"$\pm$",
    DASH: r"\textemdash{}",
    # LaTeX's own fonts lack these letters.
    **dict(zip("ÐðĐđĦħĸĿŀŊŋŦŧ", "DdDdHhkLlNnTt", strict=True)),
    **{"Þ": "Th", "þ": "th", "ŉ": "'n", "«": r"$\ll$", "»": r"$\gg$"},
}
FOLDED = "ĄąĘęĮįŲųſ"
"""Letters below U+0180 that LaTeX's own fonts lack, too; Unicode names the ASCII letter of each."""


def latex_text(text: str) -> str:
    """Return text that a plain LaTeX article prints; two hyphens stay two hyphens.

    European letters stay as they are, in UTF-8, if LaTeX's own fonts have them. The others, and
    those of other scripts, are spelled in ASCII.
    """
    letters = composed(_one_line(text))
    folded = (c if c in LATEX or (c < "\u0180" and c not in FOLDED) else _fold(c) for c in letters)
    escaped = "".join(LATEX.get(c, c) for part in folded for c in part)
    return escaped.replace("--", "-{}-").replace("--", "-{}-")


def html_text(text: str) -> str:
    escaped = html.escape(_one_line(text))
    return escaped.replace(MINUS, "&minus;").replace(PLUS_MINUS, "&plusmn;")
