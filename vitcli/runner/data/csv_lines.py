"""The lines of small tables that a user writes: CSV files of pictures, captions, corrections."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitcli.runner.data.pictures import picture_bytes
from vitcli.runner.errors import InputError
from vitcli.runner.text import did_you_mean, printable

DELIMITERS = ",;\t"


def csv_lines(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the place of each line for messages, and its cells in the order of the columns.

    Commas, semicolons or tabs separate the cells. An optional column that the file lacks is empty.

    Raises:
        InputError: The file is no CSV file with these columns, or the first cell of a line is
            empty.
    """
    where = printable(path)
    try:
        text = picture_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text; save it as UTF-8") from error
    if "\0" in text:
        raise InputError(f"{where} holds a zero byte; it is not a text file")
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        known = [*columns, *optional]
        if missing := [name for name in columns if name not in header]:
            needed = f"the first line must be {','.join(columns)}"
            raise InputError(f"{where}, line 1: no column {missing[0]!r}; {needed}")
        if strange := [name for name in header if name not in known or header.count(name) > 1]:
            hint = did_you_mean(strange[0], known) or f"; there are {', '.join(known)}"
            what = "twice the" if strange[0] in known else "unknown"
            raise InputError(f"{where}, line 1: {what} column {printable(strange[0])!r}{hint}")
        places = [header.index(name) if name in header else None for name in known]
        for row in filter(None, reader):
            at = f"{where}, line {reader.line_num}"
            if len(row) != len(header):
                raise InputError(
                    f"{at}: {len(row)} columns, not {len(header)}; put a text with a"
                    f" {'comma' if delimiter == ',' else repr(delimiter)} in quotes"
                )
            cells = ["" if place is None else row[place] for place in places]
            if not cells[0]:
                raise InputError(f"{at}: the {columns[0]} is empty")
            yield at, *cells
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from error
