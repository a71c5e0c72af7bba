"""Text out: results on stdout, talk on stderr, nothing that could steer a terminal."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer


def clean(text: str) -> str:
    """Show control characters, such as those of a hostile file name, instead of sending them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def say(text: str) -> None:
    """Talk: to stderr. Where nobody listens any more, work goes on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        typer.echo(clean(text), err=True)


def emit(text: str) -> None:
    """A result: to stdout."""
    typer.echo(clean(text))


def emit_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False, default=str))


def is_live(stream: Any = None) -> bool:
    """Whether a moving display makes sense on the stream (stderr unless given)."""
    stream = stream or sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """Aligned columns; those in ``numeric`` are set flush right."""
    cells = [[clean(cell).replace("\n", "\\n") for cell in row] for row in (header, *rows)]
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
    """Such as ``47 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
