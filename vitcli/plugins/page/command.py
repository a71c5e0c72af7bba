"""`vitcli runs page`: all runs and studies of a folder as one page."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Format, output_option
from vitcli.runner.report.report import Fact, Report


def page(
    folder: Annotated[
        Path | None,
        Argument(metavar="FOLDER", help="Folder of runs and studies.", show_default="runs"),
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
    from vitcli.plugins.page.page import write_page
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
