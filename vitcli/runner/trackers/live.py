"""Trackers: other programs that show a run while it trains, or a finished run afterwards. No torch.

A thread calls the tracker's library. So a library that fails or hangs cannot stop the training.
"""

import hashlib
import os
import queue
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.files import make_folder
from vitcli.runner.run.folder import RUNS, RunDir
from vitcli.runner.text import one_line
from vitcli.runner.trackers.exported import ExportedRun, numbers_of, read_run

Listener = Callable[[Any], None]
END_SECONDS = 5.0
"""Time that a tracker gets to send the last numbers, after the training has ended."""
MAX_WAITING = 1000
"""Number of epochs that may wait for a slow tracker."""
MAX_PARAMS = 100
"""Largest number of parameters that MLflow takes at once."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "running": "RUNNING"}
"""State -> the status of MLflow; that of the other states is FAILED."""


def run_id(run: ExportedRun) -> str:
    """Return the same text for a training and what continues it, and another after ``--rerun``."""
    return hashlib.sha256(f"{run.name} {run.identity['started']}".encode()).hexdigest()[:16]


class WandbRun:
    """A run in Weights & Biases. Variables such as ``WANDB_MODE`` have their usual meaning."""

    def __init__(self, run: ExportedRun, offline: bool) -> None:
        import wandb

        mode = "offline" if offline else os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.login(prompt=False):
            raise ConfigError("no API key; type: wandb login")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "vitcli"),
            name=run.name,
            group=run.identity["experiment"],
            config=run.config | run.facts,
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

    def __init__(self, run: ExportedRun, offline: bool) -> None:
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL") if offline else ():
            os.environ.pop(name, None)
        import trackio

        self.where = "trackio show --project vitcli"
        self._run = trackio.init(
            "vitcli",
            name=f"{run.name} {run.identity['started']}",  # trackio continues a run by its name
            group=run.identity["experiment"],
            config=run.config | run.facts,
            resume="allow",
        )

    def finish(self, state: str) -> None:
        self._run.finish()


class MlflowRun:
    """A run in MLflow: in the store that ``MLFLOW_TRACKING_URI`` names, or in runs/mlflow.db."""

    def __init__(self, run: ExportedRun, offline: bool) -> None:
        import mlflow

        make_folder(RUNS)
        local = f"sqlite:///{RUNS / 'mlflow.db'}"
        store = local if offline else os.environ.get("MLFLOW_TRACKING_URI", local)
        self.where = shlex.join(["mlflow", "ui", "--backend-store-uri", store])
        mlflow.set_tracking_uri(store)
        place = mlflow.set_experiment(run.identity["experiment"]).experiment_id
        same = f"tags.`vitcli.id` = '{run_id(run)}'"
        begun = mlflow.search_runs([place], same, output_format="list")
        mlflow.start_run(begun[0].info.run_id if begun else None, run_name=run.name)
        if not begun:
            facts = {"id": run_id(run)} | run.facts
            mlflow.set_tags({f"vitcli.{name}": value for name, value in facts.items()})
            fields = [*run.config.items()]
            for i in range(0, len(fields), MAX_PARAMS):
                mlflow.log_params(dict(fields[i : i + MAX_PARAMS]))
        self._mlflow = mlflow

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(numbers, step=step)

    def finish(self, state: str) -> None:
        self._mlflow.set_tag("vitcli.state", state)
        self._mlflow.end_run(STATUS.get(state, "FAILED"))


Tracker = WandbRun | MlflowRun
TRACKERS: dict[str, type[Tracker]] = {
    "wandb": WandbRun,
    "mlflow": MlflowRun,
    "trackio": TrackioRun,
}
"""The table of trackers, each by the name of its package."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            choices = ", ".join(TRACKERS)
            raise ConfigError(f"--track {name}: no such tracker; choose one of {choices}")
        if find_spec(name) is None:
            raise ConfigError(f"the tracker {name} is not installed; type: pip install {name}")


def send(
    name: str, run: RunDir, offline: bool, records: Iterable[dict[str, Any]], on_message: Listener
) -> None:
    """Send the numbers of epochs to a tracker and then, as ``result/...``, the final numbers."""
    tracker, step = TRACKERS[name](read_run(run), offline), 0
    on_message(f"{name}: {tracker.where}")
    for record in records:
        step = record["step"]
        numbers = numbers_of(record)
        del numbers["step"]
        tracker.log(numbers, step)
    ended = read_run(run)
    tracker.log({f"result/{name}": value for name, value in ended.numbers.items()}, step)
    tracker.finish(ended.identity["state"])


def replay(name: str, run: RunDir, offline: bool, on_message: Listener) -> None:
    """Send a run that has ended to a tracker."""
    try:
        send(name, run, offline, run.metrics(), on_message)
    except Exception as error:
        raise ResourceError(f"{name}: {run.name}: {type(error).__name__}: {error}") from error


@contextmanager
def live_tracker(
    name: str, run: RunDir, offline: bool, on_event: Listener, on_message: Listener
) -> Iterator[Listener]:
    """Yield a listener to the events of a training, which feeds a tracker, too."""
    waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
    problems: list[str] = []

    def fail(reason: str) -> None:
        problems.append(reason)
        if len(problems) == 1:
            again = f"{run.command('runs export')} --format {name}"
            on_message(
                f"warning: {name} lacks numbers of this run ({reason}); metrics.jsonl has all;"
                f" send them again: {again}"
            )

    def work() -> None:
        try:
            send(name, run, offline, iter(waiting.get, None), on_message)
        except Exception as error:
            fail(one_line(f"{type(error).__name__}: {error}", 200))

    def put(record: dict[str, Any] | None) -> None:
        try:
            waiting.put_nowait(record)
        except queue.Full:
            fail(f"{MAX_WAITING} epochs wait to be sent")

    def listen(event: Any) -> None:
        on_event(event)
        if record := getattr(event, "record", None):  # of an epoch
            put(record)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield listen
    finally:
        put(None)
        thread.join(END_SECONDS)
        if thread.is_alive():
            fail(f"it did not end within {END_SECONDS:g} s")
