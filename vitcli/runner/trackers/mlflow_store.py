"""Runs as a local store of MLflow: an SQLite file that MLflow itself writes.

A process of its own writes it: MLflow reads its folders from the environment when it is imported,
logs to the console, and keeps files open.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcli.runner.child import child_environment, python_command
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.files import make_output_folder
from vitcli.runner.text import one_line
from vitcli.runner.trackers.csv_files import cell
from vitcli.runner.trackers.exported import ExportedRun

STORE = "mlflow.db"
RESULT = "result/"
"""Prefix of final numbers, because the curves have the plain names."""
STATUS = {
    "finished": "FINISHED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "running": "RUNNING",
}
"""State -> the status of MLflow that comes closest. The tag ``vitcli.state`` has the state."""
MAX_METRICS, MAX_PARAMS = 1000, 100
"""Most metrics and most parameters that MLflow takes at once."""
MAX_TEXT = 6000
"""Longest value of a parameter. A longer one is cut and ends with dots."""


OFFLINE = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Variables that keep MLflow from using the network."""
REMOTE = "MLFLOW_"
"""Beginning of the variables that name a server. The process does not get them."""


def check_mlflow(folder: Path) -> None:
    """Check, before any run is read, that a store can be written into a folder."""
    if find_spec("mlflow") is None:
        raise ConfigError("--format mlflow needs the package mlflow; type: pip install mlflow")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"-o {folder} exists already and is not empty; choose another folder")


def show_command(folder: Path) -> str:
    return shlex.join(["mlflow", "ui", "--backend-store-uri", f"sqlite:///{folder / STORE}"])


def write_mlflow(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write a new store into a folder, whole or not at all; return its files.

    The experiment of a run is an experiment of MLflow. Configurations are parameters. Origin and
    state are tags. Curves are metrics, and so are the final numbers, as ``result/...``.
    """
    make_output_folder(folder)
    place = Path(tempfile.mkdtemp(dir=folder, prefix="."))
    try:
        _write_in_child({"folder": str(place), "runs": [asdict(run) for run in runs]})
        files = sorted(path for path in place.iterdir() if not path.name.endswith(".lock"))
        for path in files:
            os.replace(path, folder / path.name)
    except OSError as error:
        raise ResourceError(f"-o {folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return [folder / path.name for path in files]


def _write_in_child(payload: dict[str, Any]) -> None:
    kept = {k: v for k, v in child_environment().items() if not k.startswith(REMOTE)}
    done = subprocess.run(
        python_command("-m", __name__),
        input=json.dumps(payload),
        env=kept | OFFLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ResourceError(f"the store could not be written: {one_line(last, 300)}")


def main() -> None:
    """Write the runs that the parent process sends, each as plain data."""
    from mlflow.tracking import MlflowClient

    payload = json.load(sys.stdin)
    folder, runs = Path(payload["folder"]), payload["runs"]
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / STORE}")
    experiments: dict[str, str] = {}
    for run in runs:
        name = run["experiment"]
        if name not in experiments:
            # Nothing is stored as an artifact, and a relative place survives a move of the folder.
            experiments[name] = client.create_experiment(name, artifact_location="artifacts")
        start, seconds = milliseconds(run["started"]), run["numbers"].get("train_seconds", 0)
        made = begin_run(client, experiments[name], run)
        log_points(client, made, run["curve"], start)
        end_run(client, made, run, start, start + round(1000 * seconds))


def begin_run(client: Any, experiment: str, run: dict[str, Any]) -> str:
    """Write a run with its parameters and its origin; return its identity."""
    from mlflow.entities import Param, RunTag

    start = milliseconds(run["started"])
    made: str = client.create_run(experiment, start_time=start, run_name=run["name"]).info.run_id
    kept = [RunTag(f"vitcli.{name}", cell(value)) for name, value in run["facts"].items()]
    if commit := run["facts"].get("commit"):
        kept.append(RunTag("mlflow.source.git.commit", commit))
    client.log_batch(made, tags=kept)
    params = [Param(name, _short(cell(value))) for name, value in run["config"].items()]
    for i in range(0, len(params), MAX_PARAMS):
        client.log_batch(made, params=params[i : i + MAX_PARAMS])
    return made


def log_points(client: Any, made: str, points: Sequence[dict[str, Any]], when: int) -> None:
    """Add the numbers of epochs to a run, measured at a time in milliseconds since 1970."""
    from mlflow.entities import Metric

    metrics = [
        Metric(name, value, when, point["step"])
        for point in points
        for name, value in _numbers_of(point).items()
    ]
    for i in range(0, len(metrics), MAX_METRICS):
        client.log_batch(made, metrics=metrics[i : i + MAX_METRICS])


def end_run(client: Any, made: str, run: dict[str, Any], when: int, end: int | None = None) -> None:
    """Add the state and the result to a run, and end it at a time; by default now."""
    from mlflow.entities import RunTag

    last = max((point["step"] for point in run["curve"]), default=0)
    result = {f"{RESULT}{name}": value for name, value in run["numbers"].items()}
    log_points(client, made, [{"step": last, "epoch": None, "values": result}], when)
    tags = [RunTag(f"vitcli.{name}", run[name]) for name in ("state", "reason")]
    client.log_batch(made, tags=tags)
    status = STATUS[run["state"]]
    if status != "RUNNING":
        client.set_terminated(made, status, end_time=end)


def _numbers_of(point: dict[str, Any]) -> dict[str, float]:
    epoch = {} if point["epoch"] is None else {"epoch": point["epoch"]}
    return epoch | dict(point["values"])


def milliseconds(started: str) -> int:
    """Return a time such as ``2026-11-20T20:29:30Z`` in milliseconds since 1970; 0 if unknown."""
    try:
        return round(1000 * datetime.fromisoformat(started).timestamp())
    except ValueError:
        return 0


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


if __name__ == "__main__":
    main()
