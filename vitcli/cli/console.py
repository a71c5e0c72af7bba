"""Console output: results on stdout, messages on stderr, control characters escaped."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer

from vitcli.runner.text import printable


def say(text: str) -> None:
    """Print a message to stderr. A closed stderr is ignored, so that the work continues."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        typer.echo(printable(text, keep="\n"), err=True)


def emit(text: str) -> None:
    """Print a result to stdout."""
    typer.echo(printable(text, keep="\n"))


def emit_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False, default=str))


def is_live(stream: Any = None) -> bool:
    """Return whether a progress display can be redrawn on the stream (default: stderr)."""
    stream = stream or sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def line_width() -> int | None:
    """Return the width of the terminal, or None where stdout is a file or a pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """Return aligned columns; the columns in ``numeric`` are aligned right."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return "\n".join(line(row) for row in cells)


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def duration(seconds: float) -> str:
    """Return a duration as text, such as ``47 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
