"""Runs as plain data for other programs, and as CSV files. No torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.files import commit, make_output_folder
from vitcli.runner.run.compare import FACTS, MEASURES, task_measures
from vitcli.runner.run.folder import RUNS, RunDir, find_run, list_runs
from vitcli.runner.run.listing import shown_state
from vitcli.runner.run.record import is_number, last_measures
from vitcli.runner.tables import to_csv
from vitcli.runner.text import portable_fields, printable, without_folders

PLACE = ("step", "epoch")


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run without its weights, predictions, pictures and folders of this machine."""

    identity: dict[str, str]
    """Name (``run``), experiment, state, its reason and the time of the start, as texts."""
    facts: dict[str, Any]
    """Commit, versions, hardware and hash of the data."""
    config: dict[str, Any]
    numbers: dict[str, float]
    """The numbers of result.json or the latest ones of metrics.jsonl, the headline number first."""
    curve: tuple[dict[str, float], ...]
    """The numbers of each line of metrics.jsonl."""

    @property
    def name(self) -> str:
        return self.identity["run"]


def find_runs(texts: Sequence[str]) -> list[RunDir]:
    """Return the runs that are named, and those below the folders that are named, each once.

    Without a text, return all runs below runs/.
    """
    runs: dict[Path, RunDir] = {}
    for text in texts or [str(RUNS)]:
        if not text:
            raise ConfigError("the name of a run is empty; is a shell variable unset?")
        inside = list_runs(Path(text)) or list_runs(RUNS / text)
        if not inside and Path(text) == RUNS:
            raise InputError("no runs yet; start with: vitcli train")
        runs |= {run.path.resolve(): run for run in inside or [find_run(text)]}
    return sorted(runs.values(), key=lambda run: run.name)


def read_run(run: RunDir) -> ExportedRun:
    """Read the files of a run."""
    state, reason = shown_state(run)
    if state == "damaged":
        raise InputError(f"{run.path}: {reason}; check the run: {run.command('runs verify')}")
    spec, meta, measured = run.spec(), run.read("meta.json"), last_measures(run)
    row = spec.task.row
    headline = f"test_{row.headline.name}"
    names = dict.fromkeys([headline, *task_measures(row), *MEASURES, *measured])
    identity = {
        "run": run.name,
        "experiment": meta.get("experiment") or "unknown",
        "state": state,
        "reason": without_folders(reason),
        "started": meta.get("started") or "",
    }
    return ExportedRun(
        identity={name: printable(text) for name, text in identity.items()},
        facts={name: printable(_cell(meta.get(name))) for name in (*FACTS, "precision")},
        config=portable_fields(flatten(spec.model_dump(mode="json"))),
        numbers={name: measured[name] for name in names if is_number(measured.get(name))},
        curve=tuple(map(numbers_of, run.metrics())),
    )


def numbers_of(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if is_number(value)}


def write_csv(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write ``runs.csv``, a row a run, and ``curves.csv``, a row a number of an epoch.

    Empty cells are unknown values. Lists are JSON. Of the fields, those that differ are columns.
    """
    fields = dict.fromkeys(field for run in runs for field in run.config)
    differing = [name for name in fields if len({_cell(run.config.get(name)) for run in runs}) > 1]
    table: list[dict[str, Any]] = []
    curves: list[list[Any]] = [["run", "step", "epoch", "metric", "value"]]
    for run in runs:
        config = {f"config.{name}": run.config.get(name) for name in differing}
        table.append(run.identity | run.numbers | run.facts | config)
        for point in run.curve:
            place = [run.name, point["step"], point.get("epoch")]
            curves += [[*place, name, point[name]] for name in point if name not in PLACE]
    columns = dict.fromkeys(name for row in table for name in row)
    rows: list[list[Any]] = [[*columns], *([row.get(name) for name in columns] for row in table)]
    make_output_folder(folder)
    files = {folder / "runs.csv": rows, folder / "curves.csv": curves}
    for path, lines in files.items():
        commit(path, to_csv([_cell(value) for value in line] for line in lines).encode())
    return list(files)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
