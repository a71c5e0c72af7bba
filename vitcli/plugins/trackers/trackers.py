"""Runs for other programs: as CSV files, and in trackers, live or afterwards. No torch."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.files import commit, make_folder, make_output_folder, require_replaceable, sha256
from vitcli.runner.report.tables import to_csv
from vitcli.runner.run.compare import FACTS, MEASURES, task_measures
from vitcli.runner.run.folder import RUNS, RunDir
from vitcli.runner.run.record import RunRecord, is_number, read_record
from vitcli.runner.text import portable_fields, printable, without_folders

Listener = Callable[[Any], None]
FIRST_COLUMNS = rb"\Arun,(experiment|step),"


def sound_record(run: RunDir) -> RunRecord:
    record = read_record(run)
    if record.problems:
        check = run.command("runs verify")
        raise InputError(f"{run.path}: {record.reason}; check the run: {check}")
    return record


def run_id(run: RunRecord) -> str:
    """Return the same text for a training and what continues it, another after ``--rerun``."""
    return sha256(f"{printable(run.name)} {run.session.started or ''}".encode())[:16]


def group(run: RunRecord) -> str:
    return printable(run.experiment or "unknown")


def facts(run: RunRecord) -> dict[str, str]:
    return {name: printable(_cell(run.meta.get(name))) for name in (*FACTS, "precision")}


def all_fields(run: RunRecord) -> dict[str, Any]:
    """Return the configuration without folders of this machine, its fields dotted."""
    spec = run.known_spec
    return portable_fields(flatten(spec.model_dump(mode="json") if spec else run.config))


def final_numbers(run: RunRecord) -> dict[str, float]:
    numbers = run.numbers
    headline = f"test_{run.headline.name}"
    names = dict.fromkeys([headline, *task_measures(run.task), *MEASURES, *numbers])
    return {name: numbers[name] for name in names if is_number(numbers.get(name))}


def _numbers_of(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if is_number(value)}


def write_csv(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write ``runs.csv``, a row a run, and ``curves.csv``, a row a number of an epoch.

    Empty cells are unknown values. Lists are JSON. Of the fields, those that differ are columns.
    """
    configs = [all_fields(run) for run in runs]
    fields = dict.fromkeys(field for config in configs for field in config)
    differing = [
        name for name in fields if len({_cell(config.get(name)) for config in configs}) > 1
    ]
    table: list[dict[str, Any]] = []
    curves: list[list[Any]] = [["run", "step", "epoch", "metric", "value"]]
    for run, config in zip(runs, configs, strict=True):
        identity = {
            "run": printable(run.name),
            "experiment": group(run),
            "variant": printable(run.variant or ""),
            "state": run.state,
            "reason": printable(without_folders(run.reason)),
            "started": printable(run.session.started or ""),
        }
        differences = {f"config.{name}": config.get(name) for name in differing}
        table.append(identity | final_numbers(run) | facts(run) | differences)
        for record in run.metrics:
            place = [printable(run.name), record["step"], record["epoch"]]
            metrics = [name for name in _numbers_of(record) if name not in ("step", "epoch")]
            curves += [[*place, name, record[name]] for name in metrics]
    columns = dict.fromkeys(name for row in table for name in row)
    rows: list[list[Any]] = [[*columns], *([row.get(name) for name in columns] for row in table)]
    make_output_folder(folder)
    files = {folder / "runs.csv": rows, folder / "curves.csv": curves}
    for path in files:
        require_replaceable(path, "table", FIRST_COLUMNS)
    for path, lines in files.items():
        commit(path, to_csv([_cell(value) for value in line] for line in lines).encode())
    return list(files)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


class WandbRun:
    """A run in Weights & Biases. Variables such as ``WANDB_MODE`` have their usual meaning."""

    def __init__(self, run: RunRecord, offline: bool) -> None:
        import wandb

        mode = "offline" if offline else os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.login(prompt=False):
            raise ConfigError("no API key; type: wandb login")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "vitcli"),
            name=printable(run.name),
            group=group(run),
            config=all_fields(run) | facts(run),
            id=run_id(run),
            resume="allow",
            mode=mode,
            settings=wandb.Settings(console="off"),
        )
        files = Path(self._run.dir).parent
        self.where = self._run.url or shlex.join(["wandb", "sync", str(files)])

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._run.log(numbers, step=step)

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)


class TrackioRun(WandbRun):
    """A run in trackio, which keeps it on this machine unless ``TRACKIO_SPACE_ID`` is set."""

    def __init__(self, run: RunRecord, offline: bool) -> None:
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL") if offline else ():
            os.environ.pop(name, None)
        import trackio

        self.where = "trackio show --project vitcli"
        self._run = trackio.init(
            "vitcli",
            # trackio continues a run by its name
            name=f"{printable(run.name)} {run.session.started or ''}",
            group=group(run),
            config=all_fields(run) | facts(run),
            resume="allow",
        )

    def finish(self, state: str) -> None:
        self._run.finish()


class MlflowRun:
    """A run in MLflow: in the store that ``MLFLOW_TRACKING_URI`` names, or in runs/mlflow.db."""

    def __init__(self, run: RunRecord, offline: bool) -> None:
        import mlflow

        make_folder(RUNS)
        local = f"sqlite:///{RUNS / 'mlflow.db'}"
        store = local if offline else os.environ.get("MLFLOW_TRACKING_URI", local)
        self.where = shlex.join(["mlflow", "ui", "--backend-store-uri", store])
        mlflow.set_tracking_uri(store)
        place = mlflow.set_experiment(group(run)).experiment_id
        same = f"tags.`vitcli.id` = '{run_id(run)}'"
        begun = mlflow.search_runs([place], same, output_format="list")
        mlflow.start_run(begun[0].info.run_id if begun else None, run_name=printable(run.name))
        if not begun:
            tags = {"id": run_id(run)} | facts(run)
            mlflow.set_tags({f"vitcli.{name}": value for name, value in tags.items()})
            fields = [*all_fields(run).items()]
            for i in range(0, len(fields), 100):  # MLflow takes no more at once
                mlflow.log_params(dict(fields[i : i + 100]))
        self._mlflow = mlflow

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(numbers, step=step)

    def finish(self, state: str) -> None:
        self._mlflow.set_tag("vitcli.state", state)
        self._mlflow.end_run("FINISHED" if state == "finished" else "FAILED")


Tracker = type[WandbRun | MlflowRun]
TRACKERS: dict[str, Tracker] = {"wandb": WandbRun, "mlflow": MlflowRun, "trackio": TrackioRun}


def send(
    name: str, run: RunDir, offline: bool, records: Iterable[dict[str, Any]], on_message: Listener
) -> None:
    tracker, step = TRACKERS[name](sound_record(run), offline), 0
    on_message(f"{name}: {tracker.where}")
    for record in records:
        step = record["step"]
        numbers = _numbers_of(record)
        del numbers["step"]
        tracker.log(numbers, step)
    ended = sound_record(run)
    tracker.log({f"result/{name}": value for name, value in final_numbers(ended).items()}, step)
    tracker.finish(ended.state)


def replay(name: str, run: RunDir, offline: bool, on_message: Listener) -> None:
    try:
        send(name, run, offline, read_record(run).metrics, on_message)
    except Exception as error:
        raise ResourceError(f"{name}: {run.name}: {type(error).__name__}: {error}") from error
