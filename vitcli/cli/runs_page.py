"""`vitcli runs page`: one HTML file of every run and study."""

from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli.console import emit, emit_json, say
from vitcli.cli.options import Json
from vitcli.runner.text import quantity


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
