"""`vitcli runs export` and `vitcli runs page`: runs for other programs, and as one page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Format, Json, Offline, exclude, output_option
from vitcli.runner.errors import UserError, summarize_failures
from vitcli.runner.report.report import Fact, Report
from vitcli.runner.text import quantity


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
    form: Annotated[
        Literal["csv", "wandb", "mlflow", "trackio"],
        typer.Option("--format", help="CSV files or a tracker."),
    ] = "csv",
    output: Annotated[
        Path | None, output_option("FOLDER", "Folder of the CSV files.", "runs-csv")
    ] = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Write runs as CSV files, or send them to a tracker.

    \b
    Example:
      vitcli runs export --format csv -o table
    """
    from vitcli.runner.trackers import check_trackers, find_runs, replay, sound_record, write_csv

    exclude({"-o": output, f"--format {form}": form != "csv"})
    check_trackers([form] if form != "csv" else [])
    named, exported, failures = find_runs(runs or ()), [], []
    for run in named:
        try:
            exported.append(sound_record(run))
            if form != "csv":
                replay(form, run, offline, say)
        except UserError as error:
            say(f"error: {error}")
            failures.append(error)
    files = write_csv(exported, output or Path("runs-csv")) if form == "csv" and exported else []
    names = Fact("runs", [run.name for run in exported], text="")
    emit_report(Report(facts=[names], files=files), "json" if json else "text")
    if failures:
        raise summarize_failures(failures, len(named), "runs could not be exported")
    say(f"exported {quantity(len(exported), 'run')}")


def page(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Folder of runs and studies.", show_default="runs"),
    ] = None,
    output: Annotated[
        Path | None, output_option("FILE", "File to write.", "FOLDER/index.html")
    ] = None,
    form: Format = "text",
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
    report = Report(
        facts=[
            Fact("page", str(path)),
            Fact("runs", len(runs)),
            Fact("studies", studies),
            Fact("damaged", [*damaged], text=""),
        ],
        next=[f"open {path.resolve().as_uri()} in a browser"],
    )
    emit_report(report, form)
    for name, reason in damaged.items():
        say(f"damaged: {name}: {reason}")
