"""The Typer application: its commands, and the exit codes of errors."""

import errno
import logging
import os
import sys
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from vitcli.cli import (
    ablate,
    attn_map,
    bench,
    claims,
    complete,
    data,
    doctor,
    eval,
    experiments,
    explain,
    export,
    import_cmd,
    predict,
    runs,
    runs_export,
    runs_page,
    runs_watch,
    search,
    train,
    usage,
    visualize,
)
from vitcli.cli.console import say, silence_stdout
from vitcli.cli.options import group
from vitcli.cli.usage import UsageError, is_help
from vitcli.runner.errors import UserError
from vitcli.version import __version__

SPIN_COUNT = "20000"
"""Number of iterations for which a waiting thread of libgomp spins. libgomp's default of 300,000 is
faster on idle cores, but much slower if another program runs. 1,000 is slower on idle cores, but
faster if another program runs."""
ORDER = (
    *("train", "eval", "predict", "attn-map", "ablate", "visualize"),
    *("explain", "claims", "search", "runs", "experiments", "data", "bench"),
    *("import", "export", "doctor"),
)
"""The commands in the order of the help: first those that people use every day."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESOURCES = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS)


class Commands(TyperGroup):
    """The command group that turns a user's mistake into a message and an exit code.

    The traceback of a bug is printed.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            refuse(error, ctx)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            refuse(error, ctx)
        except UserError as error:
            say(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            say("stopped immediately")
            raise typer.Exit(130) from error
        except RuntimeError as error:
            refuse_failed_gpu(error)
            raise
        except OSError as error:
            if error.filename is None and error.errno in FULL:  # 'vitcli runs ls > full/runs.txt'
                error.filename = "the output"
                silence_stdout()
            if os.environ.get("VITCLI_TRACEBACK") or error.filename is None:
                raise
            say(f"error: {error.filename}: {error.strerror} (VITCLI_TRACEBACK=1 shows where)")
            raise typer.Exit(5 if error.errno in RESOURCES else 2) from error


def refuse_failed_gpu(error: RuntimeError) -> None:
    """Exit with code 5 if memory is full or a GPU failed, after a message."""
    if "torch" not in sys.modules:  # so the error is not torch's
        return
    from vitcli.runner.machine.resources import as_resource_error

    if found := as_resource_error(error):
        say(f"error: {found}")
        raise typer.Exit(found.exit_code) from error


def refuse(error: Exception, context: typer.Context) -> NoReturn:
    """Print what is wrong in a command line, and exit with code 2."""
    if is_help(error):
        raise error
    say(f"error: {usage.explain(error, context)}")
    raise typer.Exit(2) from error


app = group(cls=Commands)


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
    """Train, evaluate, ablate and inspect small Vision Transformers.

    Start with 'vitcli train': it needs no download and one or two minutes on a CPU.

    \b
    Example:
      vitcli train
    """


app.command()(ablate.ablate)
app.command("attn-map")(attn_map.attn_map)
app.add_typer(bench.bench_app, name="bench")
app.add_typer(data.commands, name="data")
app.command()(doctor.doctor)
app.command()(claims.claims)
app.command("eval")(eval.evaluate)
app.add_typer(experiments.commands, name="experiments")
app.command()(explain.explain)
app.command()(export.export)
app.command("import")(import_cmd.import_)
app.command()(predict.predict)
runs.commands.command()(runs_page.page)
runs.commands.command()(runs_watch.watch)
runs.commands.command()(runs_export.export)
app.add_typer(runs.commands, name="runs")
app.command()(search.search)
app.command()(train.train)
app.command()(visualize.visualize)


def main() -> None:
    """Run vitcli."""
    if sys.platform == "win32":
        say("error: vitcli does not run on native Windows; use WSL2")
        sys.exit(2)
    command = partial(app, prog_name="vitcli")
    wanted, _, shell = os.environ.get("_VITCLI_COMPLETE", "").partition("_")
    if wanted == "complete":
        complete.answer(command, shell)
    # Waiting threads must not spin for long: if another program needs a core, spinning makes a
    # training several times slower. libgomp reads this variable when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # If the home folder is not writable, matplotlib warns that its cache is in another folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    command()
