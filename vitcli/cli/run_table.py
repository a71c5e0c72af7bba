"""The table of `vitcli runs ls`, which fits the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitcli.cli import console
from vitcli.cli.console import duration, table
from vitcli.runner.columns import GAP, make_column, total_width
from vitcli.runner.text import printable, shorten

if TYPE_CHECKING:
    from vitcli.runner.run.listing import RunSummary

NUMERIC = ("accuracy", "result", "parameters", "time")
LEFT_OUT = ("parameters", "time")
"""Columns that are left out of a table without room for them, in this order."""
MAX_SETTINGS = 6
MAX_DATA = 24
"""Largest width of a data set's name on a narrow terminal."""

Column = list[str]
"""The header and the cells below it."""


def run_table(runs: Sequence["RunSummary"]) -> str:
    """Return the table of runs.

    On narrow terminals, the settings of a run stand below its other columns, and long names above.
    """
    whole, width = run_columns(runs), console.line_width()
    if width is None or width_of(whole) <= width:
        return join(whole)
    names, data, *others, settings = whole
    columns = [[shorten(name, MAX_DATA) for name in data], *others]
    for left_out in LEFT_OUT:
        if width_of([names, *columns]) > width:
            columns = [column for column in columns if column[0] != left_out]
    room = width - width_of(columns) - len(GAP)
    if room < 0:
        return join(whole)
    beside = [name if len(name) <= room else "" for name in names]
    above = ["" if name in beside else name for name in names]
    below = ["", *(GAP + words if words else "" for words in settings[1:])]
    rows = zip(above, join([beside, *columns]).split("\n"), below, strict=True)
    return "\n".join(line for lines in rows for line in lines if line)


def run_columns(runs: Sequence["RunSummary"]) -> list[Column]:
    """Return all columns. If any run does not classify, every result has a label."""
    from vitcli.core.spec.task import DEFAULT_TASK
    from vitcli.runner.run.listing import short_data_name

    one_task = all(run.task == DEFAULT_TASK for run in runs)
    return [
        ["run", *(printable(run.name) for run in runs)],
        ["data", *(printable(short_data_name(run.data or "-")) for run in runs)],
        ["state", *map(state, runs)],
        ["accuracy" if one_task else "result", *results(runs, not one_task)],
        ["parameters", *("-" if run.parameters is None else f"{run.parameters:,}" for run in runs)],
        [
            "time",
            *("-" if run.train_seconds is None else duration(run.train_seconds) for run in runs),
        ],
        ["settings", *(printable(settings(run)) for run in runs)],
    ]


def state(run: "RunSummary") -> str:
    """Return the state, with finished and planned epochs such as ``interrupted 3/6``."""
    if run.state == "finished" or run.epochs_planned is None:
        return run.state
    return f"{run.state} {run.epochs}/{run.epochs_planned}"


def results(runs: Sequence["RunSummary"], with_label: bool) -> list[str]:
    """Return the headline numbers, such as ``error 0.0123``.

    Those of validation images are marked, and the others leave room for the mark.
    """
    mark = " val" if any(run.is_validation for run in runs) else ""
    return [
        result(run, with_label) + (mark if run.is_validation else " " * len(mark)) for run in runs
    ]


def result(run: "RunSummary", with_label: bool) -> str:
    """Return the headline number of a run, without a mark."""
    if run.score is None:
        return "-"
    text = run.headline.text(run.score)
    return f"{run.headline.label} {text}" if with_label else text


def settings(run: "RunSummary") -> str:
    """Return what differs from the experiment, and what no name shows.

    That is the experiment, the weights that the run started from, and the seed.
    """
    from vitcli.runner.run.differing import short_setting

    words = [short_setting(field, value) for field, value in run.shown_settings.items()]
    if len(words) > MAX_SETTINGS:
        words[MAX_SETTINGS:] = [f"and {len(words) - MAX_SETTINGS} more"]
    if run.seed and f"seed{run.seed}" not in run.name.split("/"):
        words.append(f"seed={run.seed}")
    if run.experiment and run.experiment not in run.name.split("/"):
        words.insert(0, f"{run.experiment}:" if words else run.experiment)
    return " ".join(words)


def width_of(columns: Sequence[Column]) -> int:
    """Return the width of the columns beside each other."""
    made = [make_column(head, cells, right=False, limit=0) for head, *cells in columns]
    return total_width(made)


def join(columns: Sequence[Column]) -> str:
    """Return the columns as a table."""
    header, *rows = zip(*columns, strict=True)
    return table(header, rows, [i for i, name in enumerate(header) if name in NUMERIC])
