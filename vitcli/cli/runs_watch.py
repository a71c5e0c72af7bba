"""`vitcli runs watch`: the progress of a study or of runs, in the terminal."""

import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit_exactly, emit_json, is_live, line_width, say
from vitcli.cli.options import Json

if TYPE_CHECKING:
    from vitcli.runner.overview.progress import Progress, Watcher

STOP = "Ctrl-C stops watching; the training continues"
PLAIN_WIDTH = 80
"""Characters of a line in files and pipes."""


def watch(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="Study, run or folder of runs, or its name under runs/.",
            show_default="what changed last",
            autocompletion=complete.own_run,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the progress once and end.")] = False,
    every: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two readings.")
    ] = 2.0,
    json: Json = False,
) -> None:
    """Show the progress of a study while it trains.

    It ends when every trial has a result. Ctrl-C ends it earlier; the training continues. In a pipe
    it prints the progress once.

    \b
    Example:
      vitcli runs watch --once
    """
    from vitcli.runner.overview.progress import Watcher, find_watched

    watcher = Watcher(find_watched(study))
    if json:
        emit_json(document(watcher.read()))
    elif once or not is_live(sys.stdout):
        progress = watcher.read()
        emit_exactly(snapshot(progress))
        suggest(progress)
    else:
        try:
            suggest(refresh(watcher, every))
        except KeyboardInterrupt as stop:
            say("stopped watching; the training continues")
            raise typer.Exit(130) from stop


def snapshot(progress: "Progress") -> str:
    from vitcli.cli.watch_screen import screen

    return screen(progress, line_width() or PLAIN_WIDTH, ascii_only=not shows_braille())


def shows_braille() -> bool:
    """Return whether stdout can encode braille characters."""
    try:
        "\u28ff".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def refresh(watcher: "Watcher", every: float) -> "Progress":
    """Redraw the screen until the study or search has ended; return the last progress."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from vitcli.cli.watch_screen import screen

    ascii_only = not shows_braille()  # Live replaces stdout by an object without an encoding
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False) as live:
        console.show_cursor(True)  # a killed process could not show it again
        while True:
            progress = watcher.read()
            size = console.size
            text = screen(progress, size.width, size.height - 2, ascii_only=ascii_only)
            text = f"{text}\n{STOP}"
            live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)
            if progress.has_ended:
                return progress
            time.sleep(every)


def suggest(progress: "Progress") -> None:
    """Name the next command."""
    if progress.has_ended:
        say("next: vitcli runs page")
    elif progress.is_running:
        say(f"next: vitcli runs watch {shlex.quote(progress.name)}")
    elif progress.is_study:
        say(f"nothing is running; continue: {progress.command}")
    else:
        say("nothing is running; next: vitcli runs ls")


def document(progress: "Progress") -> dict[str, Any]:
    """Return the progress as JSON values."""
    return {
        "name": progress.name,
        "folder": str(progress.folder),
        "is_running": progress.is_running,
        "seconds_left": progress.seconds_left,
        "trials": [
            {
                "name": trial.name,
                "variant": trial.variant,
                "state": trial.state,
                "reason": trial.reason,
                "epochs": trial.epochs,
                "planned": trial.planned,
                "headline": trial.headline.name if trial.headline else None,
                "value": trial.curve[-1][1] if trial.curve else None,
            }
            for trial in progress.trials
        ],
    }
