"""The table of `vitcli runs ls`, which fits the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitcli.cli import console
from vitcli.runner.tables import make_table, narrowest
from vitcli.runner.text import duration, tera

if TYPE_CHECKING:
    from vitcli.runner.run.listing import RunSummary

MAX_SETTINGS = 6
FLOPS = 5
"""The column of the operations of a run."""


def run_table(runs: Sequence["RunSummary"]) -> str:
    """Return the table of runs. If any run does not classify, every result has a label.

    The operations of a run are shown where the line has room for them.
    """
    from vitcli.core.spec.task import DEFAULT_TASK
    from vitcli.runner.run.listing import short_data_name

    one_task = all(run.task == DEFAULT_TASK for run in runs)
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
    short, width = make_table(head, cells, numeric=(3, 4, 5)), console.line_width()
    fits_only_short = width and narrowest(short) <= width < narrowest(whole)
    return console.text_of(short if fits_only_short else whole)


def state(run: "RunSummary") -> str:
    """Return the state, with finished and planned epochs such as ``interrupted 3/6``."""
    if run.state == "finished" or run.epochs_planned is None:
        return run.state
    return f"{run.state} {run.epochs}/{run.epochs_planned}"


def result(run: "RunSummary", with_label: bool) -> str:
    """Return the headline number of a run, such as ``error 0.0123``; a validation one is marked."""
    if run.score is None:
        return "-"
    text = run.headline.text(run.score) + (" val" if run.is_validation else "")
    return f"{run.headline.label} {text}" if with_label else text


def settings(run: "RunSummary") -> str:
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
