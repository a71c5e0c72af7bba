"""Runs as a local store of MLflow: an SQLite file that MLflow itself writes."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vitcli.runner.trackers.child import read_payload, write_store
from vitcli.runner.trackers.csv_files import cell
from vitcli.runner.trackers.exported import RESULT, ExportedRun

STORE = "mlflow.db"
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


def write_mlflow(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write a new store into a folder; return its file.

    The experiment of a run is an experiment of MLflow. Configurations are parameters. Origin and
    state are tags. Curves are metrics, and so are the final numbers, as ``result/...``.
    """
    return write_store("mlflow_store", runs, folder, {})


def main() -> None:
    """Write the runs that the parent process sends."""
    from mlflow.tracking import MlflowClient

    folder, runs = read_payload()
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / STORE}")
    experiments: dict[str, str] = {}
    for run in runs:
        name = run["experiment"]
        if name not in experiments:
            # Nothing is stored as an artifact, and a relative place survives a move of the folder.
            experiments[name] = client.create_experiment(name, artifact_location="artifacts")
        _write_run(client, experiments[name], run)


def _write_run(client: Any, experiment: str, run: dict[str, Any]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    start = milliseconds(run["started"])
    made = client.create_run(experiment, start_time=start, run_name=run["name"]).info.run_id
    tags = {"state": run["state"], "reason": run["reason"], **run["facts"]}
    kept = [RunTag(f"vitcli.{name}", cell(value)) for name, value in tags.items()]
    if commit := run["facts"].get("commit"):
        kept.append(RunTag("mlflow.source.git.commit", commit))
    client.log_batch(made, tags=kept)
    params = [Param(name, _short(cell(value))) for name, value in run["config"].items()]
    for i in range(0, len(params), MAX_PARAMS):
        client.log_batch(made, params=params[i : i + MAX_PARAMS])
    metrics = [
        Metric(name, value, start, point["step"])
        for point in run["curve"]
        for name, value in numbers_of(point).items()
    ]
    last = max((point["step"] for point in run["curve"]), default=0)
    metrics += [Metric(f"{RESULT}{k}", v, start, last) for k, v in run["numbers"].items()]
    for i in range(0, len(metrics), MAX_METRICS):
        client.log_batch(made, metrics=metrics[i : i + MAX_METRICS])
    status = STATUS[run["state"]]
    if status != "RUNNING":
        seconds = run["numbers"].get("train_seconds", 0)
        client.set_terminated(made, status, end_time=start + round(1000 * seconds))


def numbers_of(point: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a point, its epoch among them."""
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
