"""`vitcli runs export`: runs for other programs."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import check_trackers, exclude, output_option, with_example
from vitcli.runner.errors import UserError, summarize_failures
from vitcli.runner.report.report import Fact, Report
from vitcli.runner.text import quantity


@with_example("vitcli runs export --format csv -o table")
def export(
    runs: Annotated[
        list[str] | None,
        shared.OwnRun(help="Runs, or folders of runs and studies.", show_default="runs"),
    ] = None,
    form: Annotated[
        Literal["csv", "wandb", "mlflow", "trackio"],
        Option("--format", help="CSV files or a tracker."),
    ] = "csv",
    output: Annotated[
        Path | None, output_option("FOLDER", "Folder of the CSV files.", "runs-csv")
    ] = None,
    offline: shared.Offline = False,
    json: shared.Json = False,
) -> None:
    """Write runs as CSV files, or send them to a tracker."""
    from vitcli.plugins.trackers.trackers import replay, sound_record, write_csv
    from vitcli.runner.run.folder import find_runs

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
