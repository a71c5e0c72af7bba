"""The table of `vitcli runs ls`, which fits the terminal."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitcli.cli.console import duration, table
from vitcli.runner.text import printable, shorten

if TYPE_CHECKING:
    from vitcli.runner.run.listing import RunSummary

NUMERIC = ("accuracy", "result", "parameters", "time")
LEFT_OUT = ("parameters", "time")
"""Columns that are left out of a table without room for them, in this order."""
MAX_SETTINGS = 6
INDENT = "  "

Column = list[str]
"""The header and the cells below it."""


def run_table(runs: Sequence["RunSummary"], width: int | None) -> str:
    """Return the table of runs with lines of at most ``width`` characters; None: no limit.

    On narrow terminals, the settings of a run stand below its other columns, and long names above.
    """
    columns = run_columns(runs)
    if width is None or total_width(columns) <= width:
        return join(columns)
    settings = columns.pop()
    for name in LEFT_OUT:
        if total_width(columns) > width:
            columns = [column for column in columns if column[0] != name]
    columns[1] = fit(columns[1], width - total_width(columns[2:]) - 2 * len(INDENT))
    room = width - total_width(columns[1:]) - len(INDENT)
    if room < 0:
        return join(run_columns(runs))
    names = [name if len(name) > room else "" for name in columns[0]]
    columns[0] = ["" if long else name for name, long in zip(columns[0], names, strict=True)]
    rows = join(columns).split("\n")
    parts = zip(names, rows, ["", *settings[1:]], strict=True)
    return "\n".join(
        line for name, row, below in parts for line in [name, row, wrap(below, width)] if line
    )


def run_columns(runs: Sequence["RunSummary"]) -> list[Column]:
    """Return all columns. If any run does not classify, every result has a label."""
    from vitcli.core.spec.tasks import DEFAULT_TASK
    from vitcli.runner.run.listing import short_data_name

    one_task = all(run.task == DEFAULT_TASK for run in runs)
    return [
        ["run", *(printable(run.name) for run in runs)],
        ["data", *(printable(short_data_name(run.data or "-")) for run in runs)],
        ["state", *map(state, runs)],
        ["accuracy" if one_task else "result", *(result(run, not one_task) for run in runs)],
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


def result(run: "RunSummary", with_label: bool) -> str:
    """Return the headline number on the test images, such as ``error 0.0123``."""
    if run.test_score is None:
        return "-"
    text = run.headline.text(run.test_score)
    return f"{run.headline.label} {text}" if with_label else text


def settings(run: "RunSummary") -> str:
    """Return the settings that differ from the experiment, and whatever the name does not say."""
    from vitcli.runner.run.differing import short_setting

    words = [short_setting(field, value) for field, value in run.differs.items()]
    if len(words) > MAX_SETTINGS:
        words[MAX_SETTINGS:] = [f"and {len(words) - MAX_SETTINGS} more"]
    if run.seed and f"seed{run.seed}" not in run.name.split("/"):
        words.append(f"seed={run.seed}")
    if run.experiment and run.experiment not in run.name.split("/"):
        words.insert(0, f"{run.experiment}:" if words else run.experiment)
    return " ".join(words)


def fit(column: Column, width: int) -> Column:
    """Return a column with its texts shortened to a width, but not below that of its header."""
    return [shorten(text, max(width, len(column[0]))) for text in column]


def total_width(columns: Sequence[Column]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def join(columns: Sequence[Column]) -> str:
    """Return the columns as a table."""
    header, *rows = zip(*columns, strict=True)
    return table(header, rows, [i for i, name in enumerate(header) if name in NUMERIC])


def wrap(text: str, width: int) -> str:
    """Return indented lines, broken between words."""
    return textwrap.fill(
        text,
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
