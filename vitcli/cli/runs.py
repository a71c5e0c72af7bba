"""`vitcli runs`: the runs in the folder runs/."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitcli.cli import complete
from vitcli.cli.console import (
    confirmed,
    emit,
    emit_exactly,
    emit_json,
    line_width,
    say,
    section,
    table,
    text_of,
)
from vitcli.cli.options import DATA_HELP, TOP_HELP, Json, Run, Yes, group
from vitcli.runner.report.tables import make_table, narrowest
from vitcli.runner.text import duration, tera

if TYPE_CHECKING:
    from vitcli.runner.run.folder import RunDir
    from vitcli.runner.run.record import RunRecord

LAST_EPOCHS = 5
MAX_SETTINGS = 6
FLOPS = 5
"""The column of the operations of a run."""

commands = group(
    help="List, watch, compare, export and remove runs; make a page.",
    example="vitcli runs ls --top 3",
)

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="Run folders, or names under runs/.",
        autocompletion=complete.own_run,
    ),
]


RunState = Literal["running", "interrupted", "finished", "diverged", "failed", "damaged"]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="Runs, folders under runs/, or 'pets*'.",
        show_default="all",
        autocompletion=complete.own_run,
    ),
]
OfState = Annotated[
    RunState | None, typer.Option(help="List runs in this state.", show_default="all")
]
OnData = Annotated[
    str | None,
    typer.Option(
        help=DATA_HELP,
        show_default="all",
        autocompletion=complete.data_set,
    ),
]
OfExperiment = Annotated[
    str | None,
    typer.Option(
        "--of",
        metavar="EXPERIMENT",
        help="List runs of this experiment.",
        show_default="all",
        autocompletion=complete.experiment,
    ),
]
Order = Annotated[
    Literal["date", "accuracy", "name"] | None,
    typer.Option(
        help="Order: oldest first, best result first (a validation result where there is no test"
        " result), or by name.",
        show_default="date, or accuracy with --top",
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="List in reverse order.")]
Top = Annotated[
    int | None,
    typer.Option(min=1, help=TOP_HELP, show_default="all"),
]


@commands.command()
def ls(
    names: Names = None,
    state: OfState = None,
    data: OnData = None,
    experiment: OfExperiment = None,
    sort: Order = None,
    reverse: Reverse = False,
    top: Top = None,
    json: Json = False,
) -> None:
    """List the runs under runs/ and the settings that differ.

    \b
    Example:
      vitcli runs ls --sort accuracy
    """
    from vitcli.runner.overview.study_folder import find_studies
    from vitcli.runner.run.folder import RUNS
    from vitcli.runner.run.listing import list_records, rank, select_runs
    from vitcli.runner.text import natural_key

    every = list_records()
    runs = select_runs(every, names or [], state=state, data=data, experiment=experiment)
    if top is not None:
        best = {run.path for run in rank(runs)[:top] if run.score is not None}
        runs = [run for run in runs if run.path in best]
    newest = runs[-1:]
    if sort == "name":
        runs = sorted(runs, key=lambda run: natural_key(run.name))
    elif sort == "accuracy" or (top and sort is None):
        runs = rank(runs)
        newest = runs[:1]
    if reverse:
        runs = runs[::-1]
    if json:
        emit_json([run.document() for run in runs])
    elif runs:
        emit(run_table(runs))
        say(f"next: vitcli runs show {shlex.quote(newest[0].name)}")
    elif every:
        say(f"none of the {len(every):,} runs fits; list all of them: vitcli runs ls")
    elif studies := find_studies(RUNS):
        folders = shlex.join(str(folder.relative_to(RUNS)) for folder in studies)
        say(f"no runs, but studies of saved trials: {folders}; show one: vitcli runs watch STUDY")
    else:
        say(f"no runs in {RUNS.absolute()}; start with: vitcli train")


def run_table(runs: Sequence["RunRecord"]) -> str:
    """Return the table of runs. If any run does not classify, every result has a label.

    The operations of a run are shown where the line has room for them.
    """
    from vitcli.core.spec.task import DEFAULT_TASK
    from vitcli.runner.run.listing import short_data_name

    one_task = all(run.task_name == DEFAULT_TASK for run in runs)
    header = ["run", "data", "state", "accuracy" if one_task else "result"]
    header += ["parameters", "TFLOP", "time", "settings"]
    rows = [
        [
            run.name,
            short_data_name(run.data or "-"),
            state(run),
            result(run, not one_task),
            "-" if run.parameters is None else f"{run.parameters:,}",
            tera(run.flops) or "-",
            "-" if run.train_seconds is None else duration(run.train_seconds),
            settings(run),
        ]
        for run in runs
    ]
    whole = make_table(header, rows, numeric=(3, 4, 5, 6))
    head, *cells = [[*line[:FLOPS], *line[FLOPS + 1 :]] for line in (header, *rows)]
    short, width = make_table(head, cells, numeric=(3, 4, 5)), line_width()
    fits_only_short = width and narrowest(short) <= width < narrowest(whole)
    return text_of(short if fits_only_short else whole)


def state(run: "RunRecord") -> str:
    """Return the state, with finished and planned epochs such as ``interrupted 3/6``."""
    if run.state == "finished" or run.epochs_planned is None:
        return run.state
    return f"{run.state} {run.epochs}/{run.epochs_planned}"


def result(run: "RunRecord", with_label: bool) -> str:
    """Return the headline number of a run, such as ``error 0.0123``; a validation one is marked."""
    if run.score is None:
        return "-"
    text = run.headline.text(run.score) + (" val" if run.is_validation else "")
    return f"{run.headline.label} {text}" if with_label else text


def settings(run: "RunRecord") -> str:
    """Return what differs from the experiment, and what no name shows.

    That is the experiment, the weights that the run started from, and the seed.
    """
    from vitcli.runner.run.compare import short_setting

    words = [short_setting(field, value) for field, value in run.shown_settings.items()]
    if len(words) > MAX_SETTINGS:
        words[MAX_SETTINGS:] = [f"and {len(words) - MAX_SETTINGS} more"]
    if run.seed and f"seed{run.seed}" not in run.name.split("/"):
        words.append(f"seed={run.seed}")
    if run.experiment and run.experiment not in run.name.split("/"):
        words.insert(0, f"{run.experiment}:" if words else run.experiment)
    return " ".join(words)


@commands.command()
def show(run: Run, json: Json = False) -> None:
    """Show the state, configuration, last epochs and result of a run.

    \b
    Example:
      vitcli runs show quickstart
    """
    from vitcli.runner.experiment.diff import changed_fields
    from vitcli.runner.run.record import load_run, refuse_unreadable

    record = load_run(run)
    refuse_unreadable(record.folder)
    state, reason = record.state, record.reason
    config = changed_fields(record.spec)
    meta = {name: value for name, value in record.meta.items() if name != "config"}
    parts = {"config": config, "result": record.result, "meta": meta}
    if json:
        status = {"state": state, "step": record.step, "reason": reason}
        head = {"name": record.name, "path": str(record.path), "status": status}
        emit_json({**head, **parts, "metrics": record.metrics})
        return
    emit(f"run     {record.name}\nfolder  {record.path}")
    emit(f"state   {state} at step {record.step}" + (f" ({reason})" if reason else ""))
    titles = {"config": "config (only fields that differ from the defaults)"}
    if record.reached:
        parts |= {"result": record.reached}
        titles["result"] = f"result so far ({reason})"
    for name, values in parts.items():
        known = {key: format_value(key, v) for key, v in values.items() if v is not None}
        emit(f"\n{section(titles.get(name, name), known)}")
    emit(epochs(record.metrics))
    say(f"next: {next_command(record.folder, state)}")


def epochs(records: list[dict[str, Any]]) -> str:
    """Return the last epochs as a table."""
    last = records[-LAST_EPOCHS:]
    if not last:
        return "\nno epoch is finished yet"
    names = [name for name in last[-1] if name != "step"]
    rows = [[format_value(name, record.get(name)) for name in names] for record in last]
    header = [name.replace("_accuracy", "_acc").replace("_per_second", "/s") for name in names]
    return f"\nlast epochs\n{table(header, rows, numeric=range(len(names)))}"


def format_value(name: str, value: Any) -> str:
    """Return a value as text."""
    from vitcli.core.spec.metrics import metric_of

    if value is None:
        return "-"
    if name == "code" and isinstance(value, dict):  # hashes of files, versions of packages
        return ", ".join(f"{source} {str(digest)[:12]}" for source, digest in value.items()) or "-"
    metric = metric_of(name)
    if isinstance(value, float) and metric and metric.unit:
        return metric.text(value)
    if isinstance(value, float) and name.endswith("seconds"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if name == "parameters" and isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple | list):
        return ", ".join(format_value("", v) for v in value)
    return str(value)


def next_command(run: "RunDir", state: str) -> str:
    """Return the usual next command for a run in this state."""
    folder = shlex.quote(str(run.path))
    if state == "finished":
        return run.command("eval")
    if state == "running":
        return f"tensorboard --logdir {folder}"
    if state == "diverged":
        from vitcli.runner.experiment import own_code

        slower = f"optim.lr={run.spec().optim.lr / 3:.1g}"
        words = ["vitcli", "train", f"{run.path}/config.yaml", "-s", slower, *own_code.options()]
        return shlex.join(words)
    return run.command("train --resume")


@commands.command()
def diff(
    one: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Run folder, name under runs/, or bundled model.",
            autocompletion=complete.run,
        ),
    ],
    other: Annotated[
        str,
        typer.Argument(metavar="B", help="Run to compare with A.", autocompletion=complete.run),
    ],
    json: Json = False,
) -> None:
    """Compare the configuration, environment and results of two runs.

    \b
    Example:
      vitcli runs diff quickstart cifar10-pocket
    """
    from vitcli.runner.run.compare import compare_runs
    from vitcli.runner.run.record import load_run

    left, right = load_run(one), load_run(other)
    comparison = compare_runs(left, right)
    if json:
        emit_json({"a": left.name, "b": right.name, **asdict(comparison)})
        return
    names = [left.name, right.name]
    for title, pairs in (("config", comparison.config), ("environment", comparison.facts)):
        rows = [
            [name, format_value(name, a), format_value(name, b)] for name, (a, b) in pairs.items()
        ]
        emit(f"{table([title, *names], rows)}\n" if rows else f"{title}: the same\n")
    rows = [
        [name, format_value(name, a), format_value(name, b), format_difference(name, a, b)]
        for name, (a, b) in comparison.measures.items()
    ]
    emit(table(["measured", *names, "B - A"], rows, numeric=[1, 2, 3]))
    say("note: these are single runs; a different random seed also changes the numbers")


def format_difference(name: str, a: Any, b: Any) -> str:
    """Return the difference of two numbers with its sign; that of shares in percentage points."""
    from vitcli.core.spec.metrics import metric_of

    if a is None or b is None:
        return "-"
    sign = "+" if b > a else "-" if b < a else ""
    text, metric = format_value(name, abs(b - a)), metric_of(name)
    if metric and metric.unit == "%":
        text = text.replace("%", "points")
    return sign + text


@commands.command()
def verify(runs: Runs, json: Json = False) -> None:
    """Check the files of runs; exit with code 4 if one is damaged.

    \b
    Example:
      vitcli runs verify quickstart
    """
    from vitcli.runner.errors import InputError
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.run.verify import verify_run

    verdicts_of = {run: verify_run(run) for run in map(find_run, runs)}
    if json:
        emit_json(
            {run.name: [asdict(verdict) for verdict in verdicts_of[run]] for run in verdicts_of}
        )
    else:
        for run, verdicts in verdicts_of.items():
            rows = [[verdict.state, verdict.name, verdict.reason] for verdict in verdicts]
            emit(f"run {run.name}\n{table(['state', 'file', 'reason'], rows)}")
    states = {
        run.name: {verdict.state for verdict in verdicts_of[run] if verdict.is_bad}
        for run in verdicts_of
    }
    damaged = [name for name in states if states[name] - {"unreadable"}]
    unread = [name for name in states if states[name] == {"unreadable"}]
    if damaged or unread:
        kinds = {"damaged": damaged, "cannot be read": unread}
        raise InputError(
            "; ".join(f"{kind}: {', '.join(kinds[kind])}" for kind in kinds if kinds[kind])
        )


@commands.command()
def rm(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|STUDY",
            help="Run or study folders, or names under runs/.",
            autocompletion=complete.own_run,
        ),
    ],
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove runs and their checkpoints, or whole studies.

    \b
    Example:
      vitcli runs rm quickstart
    """
    from vitcli.runner.study.remove import find_removal, remove

    removals = [find_removal(run) for run in runs]
    if not yes and not confirmed("runs rm", [removal.describe() for removal in removals]):
        say("nothing was removed")
        return
    for path in remove(removals):
        say(f"not removed, because vitcli did not write it: {path}")
    if json:
        emit_json({"removed": [removal.name for removal in removals]})
    else:
        emit("\n".join(f"removed {removal.name}" for removal in removals))


@commands.command()
def record(
    runs: Runs,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write.", show_default="stdout"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the results of finished runs of one experiment to one file.

    \b
    Example:
      vitcli runs record quickstart -o quickstart.json
    """
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.study.repeated_runs import collect_runs, write
    from vitcli.runner.study.table import to_json

    document = collect_runs([find_run(run) for run in runs])
    if document.dirty:
        say("note: the code had uncommitted changes; the commit alone does not reproduce the runs")
    if output is not None:
        write(document, output)
        say(f"wrote {output}")
    if json or output is None:
        emit_exactly(to_json(document))
