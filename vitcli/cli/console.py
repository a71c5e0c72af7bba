"""Console output: results on stdout, messages on stderr, control characters escaped."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from vitcli.runner.text import duration as duration
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
