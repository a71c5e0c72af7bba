"""The lines of small tables that a user writes: CSV files of pictures, captions, corrections."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vitcli.runner.errors import InputError
from vitcli.runner.report.tables import csv_text, read_csv
from vitcli.runner.text import did_you_mean, ignore_message, printable


def csv_lines(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    *,
    exact: bool = False,
    strip: bool = True,
    on_unused: Callable[[list[str]], object] = ignore_message,
) -> Iterator[tuple[str, ...]]:
    """Yield the place of each line for messages, and its cells in the order of the columns.

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
