"""Live trackers: a process of its own sends the numbers of a run to another program as they come.

The process reads the files of the run. The training only starts it, and waits a moment for it at
the end. So a tracker that hangs, fails or is slow cannot stop or change the training. No torch.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vitcli.core.spec.rows import Row, load_target
from vitcli.runner.child import child_environment, python_command
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import commit_json, make_folder, read_json
from vitcli.runner.run.folder import TRACKER, RunDir
from vitcli.runner.text import did_you_mean, one_line, quantity
from vitcli.runner.trackers.exported import ExportedRun, Point, read_run

GRACE_SECONDS = 30.0
"""Time that a tracker gets to send the last numbers, after the training has ended."""
POLL_SECONDS = 0.5

TRACKERS = {
    "wandb": Row(about="Weights & Biases", build="vitcli.runner.trackers.wandb_live:WandbRun"),
    "mlflow": Row(about="MLflow", build="vitcli.runner.trackers.mlflow_live:MlflowRun"),
}
"""The table of live trackers. A row has the name of its package, and builds a ``Tracker``."""


class Tracker(Protocol):
    """A run in another program."""

    id: str
    where: str
    """A command or an address that shows the run."""

    def __init__(self, run: ExportedRun, folder: Path, known: str | None, offline: bool) -> None:
        """Begin a run, or continue the one with the id ``known``; files go into the folder."""

    def log(self, point: Point) -> None: ...
    def finish(self, run: ExportedRun) -> None:
        """Add the result, and end the run with its state."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS) or f"; choose one of {', '.join(TRACKERS)}"
            raise ConfigError(f"--track {name}: no such tracker{hint}")
        if find_spec(name) is None:
            raise ConfigError(f"--track {name} needs the package {name}; type: pip install {name}")


@contextlib.contextmanager
def live_trackers(
    names: Sequence[str], run: RunDir, offline: bool, on_message: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Yield a function that starts the trackers, once the run has its files and is running.

    At the end of the block, wait for the trackers. A message says what each of them lacks.
    """
    started: dict[str, subprocess.Popen[bytes]] = {}

    def start() -> None:
        for name in names:
            with _reported(name, on_message):
                started[name] = _start(name, run, offline)

    try:
        yield start
    finally:
        until = time.monotonic() + GRACE_SECONDS
        for name, process in started.items():
            with _reported(name, on_message):
                _end(name, process, run, until, on_message)


@contextlib.contextmanager
def _reported(name: str, on_message: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        on_message(f"warning: {name}: {error}")


def _start(name: str, run: RunDir, offline: bool) -> "subprocess.Popen[bytes]":
    make_folder(run.path / TRACKER / name)
    words = {"name": name, "build": TRACKERS[name].build, "folder": str(run.path)}
    request = json.dumps(words | {"offline": offline, "parent": os.getpid()})
    with (run.path / TRACKER / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            python_command("-m", __name__, request),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the training, which the tracker then reports
        )


def _end(
    name: str,
    process: "subprocess.Popen[bytes]",
    run: RunDir,
    until: float,
    on_message: Callable[[str], None],
) -> None:
    """Wait for a tracker; end it if it takes too long, and say what is lost."""
    log, reason = run.path / TRACKER / f"{name}.log", ""
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reason = f"it did not end within {GRACE_SECONDS:g} s"
    if not process.returncode:
        return
    records, sent = run.metrics(), tracked(run, name).get("step", -1)
    lost = sum(record["step"] > sent for record in records)
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    on_message(
        f"warning: {name} lacks {lost} of {quantity(len(records), 'epoch')} and the result"
        f" ({reason or one_line(last, 200)}); metrics.jsonl has all; see {log}"
    )


def tracked(run: RunDir, name: str) -> dict[str, Any]:
    """Return what a tracker noted in the run: ``id``, ``where`` and the last ``step``."""
    try:
        return read_json(run.path / TRACKER / f"{name}.json")
    except (OSError, ValueError):
        return {}


def main() -> None:
    """Send the numbers of the run that the parent process trains, until it ends."""
    request = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    parent, name, run = request["parent"], request["name"], RunDir(Path(request["folder"]))
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    folder, known, now = run.path / TRACKER, tracked(run, name), read_run(run)
    build: type[Tracker] = load_target(request["build"])
    tracker = build(now, folder / name, known.get("id"), request["offline"])
    note = {"id": tracker.id, "where": tracker.where, "step": known.get("step", -1)}
    commit_json(folder / f"{name}.json", note)
    while True:
        is_alone = os.getppid() != parent
        now = read_run(run)
        for point in now.curve:
            if point.step > note["step"]:
                tracker.log(point)
                note["step"] = point.step
                commit_json(folder / f"{name}.json", note)
        if is_alone or now.state != "running":
            break
        time.sleep(POLL_SECONDS)
    tracker.finish(now)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
