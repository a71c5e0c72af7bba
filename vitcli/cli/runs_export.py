"""`vitcli runs export` and `vitcli runs page`: runs for other programs, and as one page."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import Json, Offline
from vitcli.runner.text import quantity


class Format(StrEnum):
    """The formats of an export, and the trackers that take one."""

    csv = "csv"
    wandb = "wandb"
    mlflow = "mlflow"
    trackio = "trackio"


def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs, or folders of runs and studies.",
            show_default="runs",
            autocompletion=complete.own_run,
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="CSV files or a tracker.")] = Format.csv,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder of the CSV files.",
            show_default="runs-csv",
        ),
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Write runs as CSV files, or send them to a tracker.

    \b
    Example:
      vitcli runs export --format csv -o table
    """
    from vitcli.runner.errors import ConfigError, UserError, summarize_failures
    from vitcli.runner.trackers.exported import find_runs, read_run, write_csv
    from vitcli.runner.trackers.live import check_trackers, replay

    if form is not Format.csv:
        check_trackers([form])
        if output:
            raise ConfigError(f"-o is the folder of CSV files; --format {form} writes none")
    found, read, failures = find_runs(runs or ()), [], []
    for run in found:
        try:
            read.append(read_run(run))
            if form is not Format.csv:
                replay(form, run, offline, say)
        except UserError as error:
            say(f"error: {error}")
            failures.append(error)
    files = []
    if form is Format.csv and read:
        files = [str(path) for path in write_csv(read, output or Path("runs-csv"))]
    if json:
        emit_json({"files": files, "runs": [run.name for run in read]})
    elif files:
        emit("\n".join(files))
    if failures:
        raise summarize_failures(failures, len(found), "runs could not be exported")
    say(f"exported {quantity(len(read), 'run')}")


def page(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Folder of runs and studies.", show_default="runs"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write.",
            show_default="FOLDER/index.html",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write one HTML page of all runs and studies of a folder.

    The page needs no network and no server: open the file in a browser.

    \b
    Example:
      vitcli runs page
    """
    from vitcli.runner.overview.page import write_page
    from vitcli.runner.run.folder import RUNS

    path, data = write_page(folder or RUNS, output)
    runs, studies = data["runs"], len(data["studies"])
    damaged = {run["name"]: run["reason"] for run in runs if run["state"] == "damaged"}
    if json:
        counts = {"runs": len(runs), "studies": studies, "damaged": [*damaged]}
        emit_json({"page": str(path), **counts})
        return
    emit(f"page    {path}")
    words = "1 study" if studies == 1 else f"{studies:,} studies"
    emit(f"holds   {quantity(len(runs), 'run')} and {words}")
    for name, reason in damaged.items():
        say(f"damaged: {name}: {reason}")
    say(f"next: open {path.resolve().as_uri()} in a browser")
