"""A run in MLflow: in the store that ``MLFLOW_TRACKING_URI`` names, or in runs/mlflow.db."""

import os
import time
from dataclasses import asdict
from pathlib import Path

from mlflow.tracking import MlflowClient

from vitcli.runner.files import file_lock, make_folder
from vitcli.runner.run.folder import RUNS
from vitcli.runner.trackers.exported import ExportedRun, Point
from vitcli.runner.trackers.mlflow_store import STORE, begin_run, end_run, log_points, show_command


class MlflowRun:
    """See ``live.Tracker``. The experiment is an experiment of MLflow."""

    def __init__(self, run: ExportedRun, folder: Path, known: str | None, offline: bool) -> None:
        remote = None if offline else os.environ.get("MLFLOW_TRACKING_URI")
        make_folder(RUNS)
        self.where = remote or show_command(RUNS)
        with file_lock(RUNS / ".mlflow.lock"):  # several trials may create the store
            self._client = MlflowClient(remote or _local_store())
            found = self._client.get_experiment_by_name(run.experiment)
            place = found.experiment_id if found else self._client.create_experiment(run.experiment)
        if known:
            self._client.update_run(known, status="RUNNING")
        self.id = known or begin_run(self._client, place, asdict(run))

    def log(self, point: Point) -> None:
        log_points(self._client, self.id, [asdict(point)], _now())

    def finish(self, run: ExportedRun) -> None:
        end_run(self._client, self.id, asdict(run), _now())


def _local_store() -> str:
    """Return the address of the store in runs/, which is created whole or not at all."""
    store, new = RUNS.resolve() / STORE, RUNS.resolve() / f".{STORE}.new"
    if not store.exists():
        new.unlink(missing_ok=True)
        MlflowClient(f"sqlite:///{new}").search_experiments()
        new.rename(store)
    return f"sqlite:///{store}"


def _now() -> int:
    return round(1000 * time.time())
