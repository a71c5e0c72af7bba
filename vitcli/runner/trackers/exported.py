"""Runs as plain data for other programs: configuration, numbers, curves and origin. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.run.compare import FACTS, MEASURES, task_measures
from vitcli.runner.run.folder import RUNS, RunDir, find_run, list_runs
from vitcli.runner.run.listing import shown_state
from vitcli.runner.run.record import is_number, last_measures, refuse_unreadable
from vitcli.runner.text import portable_fields, printable, without_folders

JSON_FILES = ("status.json", "meta.json", "result.json")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The numbers of one line of metrics.jsonl."""

    step: int
    epoch: int | None
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run without its weights, predictions and pictures."""

    name: str
    """The path below runs/, or the whole path."""
    experiment: str
    state: str
    reason: str
    """Why the run is in this state, if it was not finished."""
    started: str
    """Time of the start in UTC, such as ``2026-11-20T20:29:30Z``; empty if unknown."""
    facts: dict[str, Any]
    """Commit, whether the code had uncommitted changes, versions, hardware and hash of the data."""
    config: dict[str, Any]
    """Dotted field -> value, without folders of this machine."""
    numbers: dict[str, float]
    """The numbers of result.json or the latest ones of metrics.jsonl, the headline number first."""
    curve: tuple[Point, ...]


def find_runs(texts: Sequence[str]) -> list[RunDir]:
    """Return the runs that are named, and those below the folders that are named, each once.

    Without a text, return all runs below runs/.
    """
    found: dict[Path, RunDir] = {}
    for text in texts or [str(RUNS)]:
        if not text:
            raise ConfigError("the name of a run is empty; is a shell variable unset?")
        for run in _runs_of(text):
            found[run.path.resolve()] = run
    return sorted(found.values(), key=lambda run: run.name)


def _runs_of(text: str) -> list[RunDir]:
    for folder in (Path(text), RUNS / text):
        if folder.is_dir() and (inside := list_runs(folder)):
            return inside
    if Path(text) == RUNS:
        raise InputError("no runs yet; start with: vitcli train")
    return [find_run(text)]


def read_runs(runs: Sequence[RunDir]) -> tuple[list[ExportedRun], list[UserError]]:
    """Return the runs that can be read, and an error for each of the others."""
    read: list[ExportedRun] = []
    damaged: list[UserError] = []
    for run in runs:
        try:
            read.append(read_run(run))
        except UserError as error:
            damaged.append(error)
    return read, damaged


def read_run(run: RunDir) -> ExportedRun:
    """Read the files of a run."""
    refuse_unreadable(run)
    for name in JSON_FILES:
        if (run.path / name).exists() and not run.read(name):
            raise InputError(
                f"{run.path / name}: damaged; check the run: {run.command('runs verify')}"
            )
    spec, meta, (state, reason) = run.spec(), run.read("meta.json"), shown_state(run)
    if state == "damaged":
        raise InputError(f"{run.path}: {reason}; check the run: {run.command('runs verify')}")
    measured = last_measures(run)
    row = spec.task.row
    headline = f"test_{row.headline.name}"
    names = dict.fromkeys([headline, *task_measures(row), *MEASURES, *measured])
    return ExportedRun(
        name=printable(run.name),
        experiment=printable(meta.get("experiment") or "unknown"),
        state=state,
        reason=printable(without_folders(reason)),
        started=printable(meta.get("started") or ""),
        facts={
            name: printable(value) if isinstance(value := meta.get(name), str) else value
            for name in (*FACTS, "precision")
        },
        config=portable_fields(flatten(spec.model_dump(mode="json"))),
        numbers={name: measured[name] for name in names if is_number(measured.get(name))},
        curve=tuple(_point(record) for record in run.metrics()),
    )


def _point(record: dict[str, Any]) -> Point:
    values = {
        name: value
        for name, value in record.items()
        if name not in ("step", "epoch") and is_number(value)
    }
    epoch = record.get("epoch")
    return Point(step=record["step"], epoch=epoch if type(epoch) is int else None, values=values)


def differing(runs: Sequence[ExportedRun]) -> list[str]:
    """Return the fields of the configurations in which the runs differ, in their usual order."""
    fields = dict.fromkeys(field for run in runs for field in run.config)
    return [
        field
        for field in fields
        if any(run.config.get(field) != runs[0].config.get(field) for run in runs)
    ]
