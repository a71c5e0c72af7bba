"""`vitcli runs page`: all runs of a folder as one page; `vitcli runs watch`: their progress."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from vitcli.cli.console import emit, emit_report, is_live, say
from vitcli.cli.options import (
    ORDER_HELP,
    Format,
    Json,
    Order,
    OwnRun,
    Split,
    output_option,
    with_example,
)
from vitcli.runner.errors import InputError
from vitcli.runner.report.report import DataTable, Fact, Report, facts_of
from vitcli.runner.text import printable

if TYPE_CHECKING:
    from vitcli.runner.overview.progress import Progress, Watcher
    from vitcli.runner.run.record import RunRecord


@with_example("vitcli runs page", "vitcli runs page --sort score --split val -o board.html")
def page(
    folder: Annotated[
        Path | None,
        Argument(metavar="FOLDER", help="Folder of runs and studies.", show_default="runs"),
    ] = None,
    output: Annotated[
        Path | None, output_option("FILE", "File to write.", "FOLDER/index.html")
    ] = None,
    sort: Annotated[
        Order | None, Option(help=ORDER_HELP, show_default="newest experiment first")
    ] = None,
    split: Split = "test",
    form: Format = "text",
) -> None:
    """Write one HTML page of all runs and studies of a folder.

    The page needs no network and no server: open the file in a browser. With --split val, it holds
    no test result.
    """
    from vitcli.plugins.page.page import write_page
    from vitcli.runner.run.folder import RUNS

    path, data = write_page(folder or RUNS, output, sort, split)
    runs, studies = data["runs"], len(data["studies"])
    damaged = {run["name"]: run["reason"] for run in runs if run["state"] == "damaged"}
    unmeasured = [
        run["name"] for run in runs if run["state"] == "finished" and run["score"] is None
    ]
    notes = []
    if unmeasured and split != "test":
        set_aside = "; -s data.val_split=0.1 sets validation images aside" * (split == "val")
        notes = [f"no {split} result: {', '.join(unmeasured)}{set_aside}"]
    report = Report(
        facts=[
            Fact("page", str(path)),
            Fact("runs", len(runs)),
            Fact("studies", studies),
            Fact("damaged", [*damaged], text=""),
        ],
        notes=notes,
        next=[f"open {path.resolve().as_uri()} in a browser"],
    )
    emit_report(report, form)
    for name, reason in damaged.items():
        say(f"damaged: {name}: {reason}")


def find_watched(name: str | None) -> Path:
    """Return a folder of runs by path or name under runs/; without a name, that changed last."""
    from vitcli.runner.overview.progress import read_study
    from vitcli.runner.run.folder import RUNS, list_runs

    if name is None:
        runs = list_runs(RUNS)
        if not runs:
            raise InputError("no runs yet; start with: vitcli train")
        newest = runs[-1].path
        return next((path for path in newest.parents if read_study(path)), newest)
    for folder in (Path(name), RUNS / name) if name else ():
        if folder.is_dir() and (read_study(folder) or list_runs(folder)):
            return folder
    raise InputError(
        f"no study or run under runs/ is called {name!r}; 'vitcli runs ls' lists them, and"
        " 'vitcli ablate STUDY' starts a study"
    )


@with_example("vitcli runs watch --once")
def watch(
    study: Annotated[
        str | None,
        OwnRun(
            metavar="STUDY",
            help="Study, run or folder of runs, or its name under runs/.",
            show_default="what changed last",
        ),
    ] = None,
    once: Annotated[bool, Option("--once", help="Print the progress once and end.")] = False,
    every: Annotated[float, Option(min=0.2, max=3600, help="Seconds between two readings.")] = 2.0,
    json: Json = False,
) -> None:
    """Show the progress of a study while it trains.

    It ends when every trial has a result. Ctrl-C ends it earlier; the training continues. In a pipe
    it prints the progress once.
    """
    from vitcli.runner.overview.progress import Watcher, summary

    watcher = Watcher(find_watched(study))
    if json:
        emit_report(report(watcher.read()), "json")
    elif once or not (is_live() and is_live(sys.stdout)):
        progress = watcher.read()
        trials = [trial for trial in progress.trials if trial.state != "missing"]
        emit(f"{printable(progress.name)}: {summary(progress)}")
        for trial in trials:
            emit(trial_line(trial))
        suggest(progress)
    else:
        try:
            suggest(follow(watcher, every))
        except KeyboardInterrupt as stop:
            say("stopped watching; the training continues")
            raise typer.Exit(130) from stop


def follow(watcher: "Watcher", every: float) -> "Progress":
    from vitcli.cli.live import Display, bars
    from vitcli.runner.overview.progress import summary

    told: dict[str, str] = {}
    with bars() as screen:
        display = Display(screen)
        while True:
            progress = watcher.read()
            display.move("all", progress.num_ended, len(progress.trials), summary(progress))
            for trial in progress.trials:
                if trial.state == "running":
                    display.move(trial.name, trial.epochs, trial.epochs_planned, numbers(trial))
                elif told.get(trial.name, "missing") != trial.state:
                    display.end(trial.name)
                    display.say(trial_line(trial))
                told[trial.name] = trial.state
            if progress.has_ended:
                return progress
            time.sleep(every)


def trial_line(trial: "RunRecord") -> str:
    name, reason = printable(trial.name), printable(trial.reason)
    return f"{name:<32}  {trial.state:<11}  {reason or numbers(trial)}".rstrip()


def numbers(trial: "RunRecord") -> str:
    text = f"epoch {trial.epochs} of {trial.epochs_planned}" if trial.epochs else ""
    if trial.curve:
        text += f"  {trial.headline.label} {trial.headline.text(trial.curve[-1][1])}"
    return text


def suggest(progress: "Progress") -> None:
    if progress.has_ended:
        say("next: vitcli runs page")
    elif progress.is_running:
        say(f"next: vitcli runs watch {shlex.quote(progress.name)}")
    elif progress.is_study:
        say(f"nothing is running; continue: {progress.command}")
    else:
        say("nothing is running; next: vitcli runs ls")


def report(progress: "Progress") -> Report:
    rows = [
        {
            "name": trial.name,
            "variant": trial.variant,
            "state": trial.state,
            "reason": trial.reason,
            "epochs": trial.epochs,
            "planned": trial.epochs_planned,
            "headline": trial.headline.name,
            "value": trial.curve[-1][1] if trial.curve else None,
        }
        for trial in progress.trials
    ]
    return Report(
        facts=facts_of(
            name=progress.name,
            folder=str(progress.folder),
            is_running=progress.is_running,
            seconds_left=progress.seconds_left,
        ),
        tables=[DataTable("trials", [*rows[0]] if rows else [], rows)],
    )
