"""Trackers: other programs that show a run while it trains, or a finished run afterwards. No torch.

A thread calls the tracker's library. So a library that fails or hangs cannot stop the training.
"""

import hashlib
import os
import queue
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.files import make_folder
from vitcli.runner.run.folder import RUNS, RunDir
from vitcli.runner.text import did_you_mean, one_line
from vitcli.runner.trackers.exported import ExportedRun, numbers_of, read_run

Listener = Callable[[Any], None]
END_SECONDS = 5.0
"""Time that trackers get to send the last numbers, after the training has ended."""
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


def check_trackers(names: Sequence[str], option: str = "--track") -> None:
    """Refuse trackers that are unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS) or f"; choose one of {', '.join(TRACKERS)}"
            raise ConfigError(f"{option} {name}: no such tracker{hint}")
        if find_spec(name) is None:
            raise ConfigError(f"{option} {name} needs the package {name}; type: pip install {name}")


def replay(run: ExportedRun, name: str, offline: bool) -> str:
    """Send a run that has ended to a tracker; return what shows it there."""
    tracker = TRACKERS[name](run, offline)
    for record in run.curve:
        log_record(tracker, record)
    finish(tracker, run)
    return tracker.where


def log_record(tracker: Tracker, record: dict[str, float]) -> None:
    tracker.log({name: record[name] for name in record if name != "step"}, int(record["step"]))


def finish(tracker: Tracker, run: ExportedRun) -> None:
    """Add the final numbers as ``result/...``, because the curves have the plain names."""
    last = max((int(record["step"]) for record in run.curve), default=0)
    tracker.log({f"result/{name}": value for name, value in run.numbers.items()}, last)
    tracker.finish(run.identity["state"])


@contextmanager
def live_trackers(
    names: Sequence[str], run: RunDir, offline: bool, on_message: Callable[[str], None]
) -> Iterator[Callable[[Listener], Listener]]:
    """Yield a function that begins the trackers, once the run has its files.

    It takes a listener to the events of the training, and returns one that feeds the trackers, too.
    """
    senders: list[Sender] = []

    def track(on_event: Listener) -> Listener:
        senders.extend(Sender(name, run, offline, on_message) for name in names)

        def listen(event: Any) -> None:
            on_event(event)
            if record := getattr(event, "record", None):  # of an epoch
                for sender in senders:
                    sender.put(record)

        return listen

    try:
        yield track
    finally:
        until = time.monotonic() + END_SECONDS
        for sender in senders:
            sender.put(None)
        for sender in senders:
            sender.close(until)


class Sender:
    """The thread of a tracker, and the queue that feeds it."""

    def __init__(
        self, name: str, run: RunDir, offline: bool, on_message: Callable[[str], None]
    ) -> None:
        self._name, self._run, self._offline, self._on_message = name, run, offline, on_message
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._messages: list[str] = []
        self._has_failed = False
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, record: dict[str, Any] | None) -> None:
        """Send the record of an epoch; None ends the run."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._fail(f"{MAX_WAITING} epochs wait to be sent")
        self._tell()

    def close(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._fail(f"it did not end within {END_SECONDS:g} s")
        self._tell()

    def _tell(self) -> None:
        """Pass on what the thread has to say, in the thread of the training."""
        while self._messages:
            self._on_message(self._messages.pop(0))

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            again = f"{self._run.command('runs export')} --format {self._name}"
            self._messages.append(
                f"warning: {self._name} lacks numbers of this run ({reason}); metrics.jsonl has"
                f" all; send them again: {again}"
            )

    def _send(self) -> None:
        try:
            tracker = TRACKERS[self._name](read_run(self._run), self._offline)
            self._messages.append(f"{self._name}: {tracker.where}")
            while (record := self._waiting.get()) is not None:
                log_record(tracker, numbers_of(record))
            finish(tracker, read_run(self._run))
        except Exception as error:
            self._fail(one_line(f"{type(error).__name__}: {error}", 200))
