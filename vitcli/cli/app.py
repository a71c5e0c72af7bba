"""The Typer application: shared options, and the one place where an error becomes an exit code."""

import errno
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitcli import __version__
from vitcli.cli.console import say
from vitcli.runner.errors import UserError

SPIN_COUNT = "20000"
"""Turns for which a thread of libgomp waits awake: libgomp's own 300,000 is faster on idle cores
and far slower where another program runs, 1,000 the other way round."""
RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


class Commands(TyperGroup):
    """Shows a UserError as one message and its exit code; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            say(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            say("stopped at once")
            raise typer.Exit(130) from error
        except BrokenPipeError as error:  # 'vitcli runs ls | head -1' is no failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(0) from error
        except OSError as error:
            if os.environ.get("VITCLI_TRACEBACK") or error.filename is None:
                raise
            say(f"error: {error.filename}: {error.strerror} (VITCLI_TRACEBACK=1 shows where)")
            raise typer.Exit(5 if error.errno in RESOURCES else 2) from error


def group(**options: Any) -> typer.Typer:
    """A Typer application with plain output, so that pipes, NO_COLOR and TERM=dumb work."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


app = group(cls=Commands)


class Fit(StrEnum):
    """How a picture is brought into a model's shape."""

    crop = "crop"
    pad = "pad"
    stretch = "stretch"


# Options shared by several commands are types, so they read and behave the same everywhere.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
FitOption = Annotated[
    Fit,
    typer.Option(
        "--fit", help="A picture of another shape: crop as in training, pad with black, or stretch."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The only place where the data set is searched.", show_default=False),
]
Offline = Annotated[
    bool, typer.Option("--offline", envvar="VITCLI_OFFLINE", help="Never open a connection.")
]
LimitBatches = Annotated[
    int | None,
    typer.Option(
        min=1, help="Only so many batches an epoch and an evaluation.", show_default=False
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="FIELD=VALUE", help="Change a field; may be repeated."),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a name under runs/.")]
ChosenRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="A run folder, or a name under runs/.",
        show_default="the newest, or cifar10-pocket",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitcli {__version__}")
        raise typer.Exit


@app.callback()
def vitcli(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train, evaluate, ablate and look inside small Vision Transformers.

    Start with 'vitcli train': no download, about a minute on a laptop.
    """


def register() -> None:
    """Import every command module; each adds itself to the application."""
    from vitcli.cli import (  # noqa: F401
        ablate,
        attn_map,
        bench,
        data,
        doctor,
        eval,
        experiments,
        import_cmd,
        predict,
        runs,
        train,
        visualize,
    )


def main() -> None:
    """The entry point."""
    if sys.platform == "win32":
        say("error: vitcli does not run on Windows itself; use WSL2")
        sys.exit(2)
    # Threads that wait for each other must not spin for long: where another program wants a core
    # too, a training is several times slower for it. libgomp reads this when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    register()
    app()
