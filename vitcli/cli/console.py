"""Console output: results on stdout, messages on stderr, control characters escaped."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import typer

from vitcli.runner.errors import ConfigError
from vitcli.runner.report.report import Report, render
from vitcli.runner.text import printable, wrap_line

QUIET = "VITCLI_QUIET"
"""Variable that leaves only results and errors."""
MIN_WIDTH = 40
_results: TextIO | None = None
"""Stdout while ``only_results`` holds."""


@contextlib.contextmanager
def only_results() -> Iterator[None]:
    """Send what other code prints in the block to stderr, so that stdout has only results."""
    global _results
    if sys.stdout is None:  # closed
        yield
        return
    _results = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results = None


def say(text: str) -> None:
    """Print a message to stderr. A closed stderr is ignored, so that the work continues."""
    if os.environ.get(QUIET) and not text.startswith("error"):
        return
    text = wrapped(text, sys.stderr)
    try:
        typer.echo(text, err=True)
    except OSError:
        silence(2)  # or else Python would fail at its end, with what it still holds of the text
    except (ValueError, AttributeError):
        pass


def emit(text: str, *, wrap: bool = True) -> None:
    """Print a result to stdout; ``wrap=False`` keeps lines whole that a program reads."""
    emit_exactly(wrapped(text, None) if wrap else printable(text, keep="\n"))


def emit_exactly(text: str, *, nl: bool = True) -> None:
    """Print text to stdout as it is. If the reader has gone, the work continues without output."""
    try:
        typer.echo(text, file=_results, nl=nl)
    except BrokenPipeError:
        silence(1)


def silence(stream: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def wrapped(text: str, stream: TextIO | None) -> str:
    """Return printable text; on a terminal (None: stdout), long lines wrap between words."""
    text, width = printable(text, keep="\n"), line_width(stream)
    if width is None:
        return text
    return "\n".join(wrap_line(line, width) for line in text.split("\n"))


def is_live(stream: Any = None) -> bool:
    """Return whether a progress display can be redrawn on the stream (default: stderr)."""
    if stream is None and os.environ.get(QUIET):
        return False
    stream = stream or sys.stderr
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def line_width(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal, or None if the stream is no terminal (default: stdout).

    In files and pipes, lines are as long as they need to be, whatever the variable COLUMNS says.
    """
    stream = stream or _results or sys.stdout
    if stream is None or stream.closed or not stream.isatty():
        return None
    width = shutil.get_terminal_size(os.get_terminal_size(stream.fileno())).columns
    return max(MIN_WIDTH, width or 80)


def emit_report(report: Report, form: str) -> None:
    """Print a report in a form of ``--format``; say which files were written and what is next."""
    shown = render(report, form, line_width())
    if form == "json":
        emit_exactly(shown)
        return
    if shown:
        emit(shown, wrap=form == "text")
    for note in report.notes if form == "csv" else ():
        say(note)
    for path in report.files:
        say(f"wrote {path}")
    for command in report.next:
        say(f"next: {command}")


def confirmed(command: str, things: Sequence[str]) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"'vitcli {command}' asks for confirmation; without a terminal, type --yes"
        )
    question = f"remove {things[0]}?"
    if len(things) > 1:
        say("\n".join(things))
        question = f"remove all {len(things)}?"
    try:
        return typer.confirm(printable(question), err=True)
    except typer.Abort as error:
        say("\nnothing was removed")
        raise typer.Exit(130) from error
