"""What runs/ holds: a line about each run, and how one is removed."""

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.errors import ConfigError, InputError, InUseError, ResourceError
from vitcli.runner.run.compare import last_measures
from vitcli.runner.run.folder import FILES, RUNS, RunDir, temporaries


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run as ``runs ls`` shows it; what is not known is None."""

    name: str
    path: str
    state: str
    reason: str
    experiment: str | None
    epochs: int
    epochs_planned: int | None
    test_accuracy: float | None
    parameters: int | None
    train_seconds: float | None
    seed: int | None


def summarize(run: RunDir) -> RunSummary:
    """What the files of a run say, however incomplete they are."""
    meta, measured = run.read("meta.json"), last_measures(run)
    try:
        spec = run.spec()
    except ConfigError:
        spec = None
    state, reason = live_state(run)
    return RunSummary(
        name=run.name,
        path=str(run.path),
        state=state,
        reason=reason,
        experiment=meta.get("experiment"),
        epochs=measured.get("epochs", 0),
        epochs_planned=spec.train.epochs if spec else None,
        test_accuracy=measured.get("test_accuracy"),
        parameters=measured.get("parameters"),
        train_seconds=measured.get("train_seconds"),
        seed=spec.seed if spec else meta.get("seed"),
    )


def live_state(run: RunDir) -> tuple[str, str]:
    """State and reason; a run that says "running" while nobody holds its folder was killed."""
    status = run.status()
    state, reason = str(status["state"]), str(status.get("reason") or "")
    if state == "running" and not in_use(run):
        return "interrupted", "its process is gone"
    return state, reason


def in_use(run: RunDir) -> bool:
    """Whether a process holds the run's lock; never creates one."""
    if not (run.path / ".lock").exists():
        return False
    try:
        with run.lock(timeout=0):
            return False
    except InUseError:
        return True
    except OSError:  # a copy that cannot be written: nobody trains there
        return False


def best(summaries: Sequence[RunSummary], count: int) -> list[RunSummary]:
    """The ``count`` runs with the highest test accuracy, best first."""
    measured = [run for run in summaries if run.test_accuracy is not None]
    return sorted(measured, key=lambda run: run.test_accuracy or 0, reverse=True)[:count]


def is_run_folder(run: RunDir) -> bool:
    """Whether vitcli wrote this folder: other programs have a config.yaml too."""
    if {"state", "step"} <= run.read("status.json").keys():
        return True
    try:
        run.spec()
    except ConfigError:
        return False
    return (run.path / ".lock").exists()


def remove_runs(runs: Sequence[RunDir]) -> list[str]:
    """Remove the files of runs, all or none; the names of foreign files that were left alone.

    Raises:
        InUseError: Another process holds one of them; nothing was removed.
        InputError: One of them is not a run folder; nothing was removed.
        ConfigError: One of them comes with vitcli; nothing was removed.
    """
    distinct = {run.path.resolve(): run for run in runs}
    for path, run in distinct.items():
        run.require_own()
        if not is_run_folder(run):
            raise InputError(f"{path}: not a folder that vitcli wrote; nothing was removed")
    left: list[str] = []
    with contextlib.ExitStack() as held:
        try:
            for run in distinct.values():
                held.enter_context(run.lock())
            for path in distinct:
                left += _remove(path)
        except OSError as error:
            raise ResourceError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return left


def clear(folder: Path) -> None:
    """Delete what a run consists of, and nothing else."""
    for path in temporaries(folder):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if name == "predictions.npz":
            for path in folder.glob("events.out.tfevents.*"):
                path.unlink()


def _remove(folder: Path) -> list[str]:
    """Delete a run, then the folders that this leaves empty."""
    clear(folder)
    left = [str(path) for path in sorted(folder.iterdir()) if path.name != ".lock"]
    if not left:
        drop_empty(folder)
    return left


def drop_empty(folder: Path) -> None:
    """Remove a folder that holds a lock at most and, under runs/, the empty folders around it."""
    if any(path.name != ".lock" for path in folder.iterdir()):
        return
    (folder / ".lock").unlink(missing_ok=True)
    folder.rmdir()
    top, folder = RUNS.resolve(), folder.resolve()
    for parent in folder.parents:
        if top not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:  # it holds other runs
            return
