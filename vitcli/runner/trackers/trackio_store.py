"""Runs as a local store of Trackio: one SQLite file for each experiment, written by Trackio."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vitcli.runner.trackers.child import read_payload, write_store
from vitcli.runner.trackers.exported import RESULT, ExportedRun
from vitcli.runner.trackers.mlflow_store import milliseconds, numbers_of


def write_trackio(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write a new store into a folder; return its files.

    The experiment of a run is a project of Trackio. The configuration has the settings, the origin
    and the state (``vitcli.state``). The final numbers are logged last, as ``result/...``.
    """
    return write_store("trackio_store", runs, folder, {"TRACKIO_DIR": "{}"})


def main() -> None:
    """Write the runs that the parent process sends. TRACKIO_DIR names the folder."""
    from trackio.sqlite_storage import SQLiteStorage

    _, runs = read_payload()
    for run in runs:
        steps = [point["step"] for point in run["curve"]]
        logged = [numbers_of(point) for point in run["curve"]]
        steps.append(max(steps, default=0))
        logged.append({f"{RESULT}{name}": value for name, value in run["numbers"].items()})
        time = datetime.fromtimestamp(milliseconds(run["started"]) / 1000, UTC).isoformat()
        SQLiteStorage.validate_project_name(run["experiment"])
        SQLiteStorage.bulk_log(
            project=run["experiment"],
            run=run["name"],
            metrics_list=logged,
            steps=steps,
            timestamps=[time] * len(steps),
            config=configuration(run, time),
        )


def configuration(run: dict[str, Any], time: str) -> dict[str, Any]:
    """Return the settings, and the origin and the state of the run with a prefix.

    Trackio sorts runs by ``_Created``.
    """
    origin = {"state": run["state"], "reason": run["reason"], **run["facts"]}
    return {
        **run["config"],
        **{f"vitcli.{name}": value for name, value in origin.items()},
        "_Created": time,
    }


if __name__ == "__main__":
    main()
