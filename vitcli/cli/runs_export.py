"""`vitcli runs export` and `vitcli runs page`: runs for other programs, and as one page."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import Json
from vitcli.runner.text import quantity


class Format(StrEnum):
    """The formats of an export."""

    csv = "csv"
    mlflow = "mlflow"


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
    form: Annotated[Format, typer.Option("--format", help="Format to write.")] = Format.csv,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder to write.",
            show_default="runs-csv or runs-mlflow",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write runs as CSV, or as a local store of MLflow.

    No network is used. A store is new: an export does not add to a store.

    \b
    Example:
      vitcli runs export --format csv -o table
    """
    from vitcli.runner.errors import summarize_failures
    from vitcli.runner.trackers.csv_files import write_csv
    from vitcli.runner.trackers.exported import find_runs, read_runs
    from vitcli.runner.trackers.mlflow_store import check_mlflow, show_command, write_mlflow

    output = output or Path(f"runs-{form}")
    if form is Format.mlflow:
        check_mlflow(output)
    found = find_runs(runs or ())
    read, damaged = read_runs(found)
    for error in damaged:
        say(f"error: {error}")
    if not read:
        raise summarize_failures(damaged, len(found), "runs could not be read")
    files = write_mlflow(read, output) if form is Format.mlflow else write_csv(read, output)
    if json:
        emit_json({"files": [str(path) for path in files], "runs": [run.name for run in read]})
    else:
        emit("\n".join(str(path) for path in files))
    say(f"exported {quantity(len(read), 'run')}")
    if damaged:
        raise summarize_failures(damaged, len(found), "runs could not be read")
    if form is Format.mlflow:
        say(f"next: {show_command(output)}")


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
