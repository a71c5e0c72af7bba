"""Runs as two CSV files: one row a run, and one row for each number of each epoch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli.runner.files import commit, make_output_folder
from vitcli.runner.tables import to_csv
from vitcli.runner.trackers.exported import ExportedRun, differing

RUNS_FILE, CURVES_FILE = "runs.csv", "curves.csv"
COLUMNS = ("run", "experiment", "state", "reason", "started")
CURVE_COLUMNS = ("run", "step", "epoch", "metric", "value")


def write_csv(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write ``runs.csv`` and ``curves.csv`` into a folder; return their paths.

    Empty cells are unknown values. Lists are JSON.
    """
    make_output_folder(folder)
    files = {folder / RUNS_FILE: run_rows(runs), folder / CURVES_FILE: curve_rows(runs)}
    for path, rows in files.items():
        commit(path, to_csv([cell(each) for each in row] for row in rows).encode())
    return list(files)


def run_rows(runs: Sequence[ExportedRun]) -> list[list[Any]]:
    """Return the header and a row for each run.

    The columns after the first ones are the numbers, the facts about the origin, and the fields in
    which the configurations differ. A field has the prefix ``config.``.
    """
    fields = differing(runs)
    numbers = list(dict.fromkeys(name for run in runs for name in run.numbers))
    facts = list(dict.fromkeys(name for run in runs for name in run.facts))
    head = [*COLUMNS, *numbers, *facts, *(f"config.{field}" for field in fields)]
    return [
        head,
        *(
            [
                *(run.name, run.experiment, run.state, run.reason, run.started),
                *(run.numbers.get(name) for name in numbers),
                *(run.facts.get(name) for name in facts),
                *(run.config.get(field) for field in fields),
            ]
            for run in runs
        ),
    ]


def curve_rows(runs: Sequence[ExportedRun]) -> list[list[Any]]:
    """Return the header and a row for each number of each epoch of each run."""
    return [
        list(CURVE_COLUMNS),
        *(
            [run.name, point.step, point.epoch, name, value]
            for run in runs
            for point in run.curve
            for name, value in point.values.items()
        ),
    ]


def cell(value: Any) -> str:
    """Return the text of a cell; numbers keep all their digits."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
