"""The progress of runs while they train: of a study, or of every run below a folder. No torch.

A file is read again only after it has changed, so that watching takes no time from the training.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.metrics import Metric
from vitcli.runner.engines.drivers import PLAN, other_drivers
from vitcli.runner.errors import InputError
from vitcli.runner.overview.study_folder import StudyFolder, read_study, split_seed
from vitcli.runner.run.folder import RESULT_STATES, RUNS, RunDir, list_runs
from vitcli.runner.run.listing import live_state, readable_spec
from vitcli.runner.run.record import headline_curve, is_epoch, is_number, readable_metrics
from vitcli.runner.text import natural_key
from vitcli.runner.train.events import seconds_left

ENDED = (*RESULT_STATES, "saved")
"""States of trials that are not trained any more."""
Content = TypeVar("Content")


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """A trial, or a run outside a study."""

    name: str
    variant: str
    state: str
    """A state of a trial, or ``damaged`` if its configuration cannot be read."""
    reason: str = ""
    epochs: int = 0
    planned: int | None = None
    headline: Metric | None = None
    curve: tuple[tuple[int, float], ...] = ()
    """(epoch, headline number), on the validation split if there is one."""
    epoch_seconds: float | None = None
    """Duration of the last epoch without its evaluation."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """All trials at one time; those of the baseline come first."""

    name: str
    folder: Path
    command: str
    """The command that continues the study; empty outside a study."""
    is_study: bool
    is_running: bool
    may_grow: bool
    """Whether a process drives the trials; that of a search may ask for further ones."""
    trials: tuple[TrialProgress, ...]

    @property
    def num_ended(self) -> int:
        return sum(trial.state in ENDED for trial in self.trials)

    @property
    def has_ended(self) -> bool:
        return not self.may_grow and self.num_ended == len(self.trials)

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated time left; None if nothing runs or no epoch has ended."""
        running = sum(trial.state == "running" for trial in self.trials)
        begun, usual = [], []
        for trial in self.trials:
            if trial.epoch_seconds and trial.planned:
                usual.append(trial.planned * trial.epoch_seconds)
                if trial.state not in ENDED:
                    begun.append(max(0, trial.planned - trial.epochs) * trial.epoch_seconds)
        waiting = len(self.trials) - self.num_ended - len(begun)
        return seconds_left(begun, waiting, usual, running) if running else None


class Watcher:
    """Reader of the progress of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, tuple[Any, Any]] = {}

    def read(self) -> Progress:
        """Return the progress now."""
        study = self._cached(self.folder / PLAN, lambda: read_study(self.folder))
        if study:
            trials = [self._trial(study, each) for each in study.plan.trials]
        else:
            trials = [self._run(run) for run in list_runs(self.folder)]
            trials.sort(key=lambda trial: natural_key(trial.name))
        may_grow = study is not None and other_drivers(self.folder) > 0
        return Progress(
            name=RunDir(self.folder).name,
            folder=self.folder,
            command=study.command if study else "",
            is_study=study is not None,
            is_running=may_grow or any(trial.state == "running" for trial in trials),
            may_grow=may_grow,
            trials=tuple(trials),
        )

    def _trial(self, study: StudyFolder, name: str) -> TrialProgress:
        planned, run = study.plan.trials[name], RunDir(self.folder / name)
        if run.exists:
            return self._progress(run, name, planned.variant)
        state = study.state_without_run(name)
        return TrialProgress(
            name=name, variant=planned.variant, state=state, planned=planned.epochs
        )

    def _run(self, run: RunDir) -> TrialProgress:
        path = run.path.relative_to(self.folder)
        variant, _ = split_seed(path)
        name = str(path) if path.parts else run.name
        return self._progress(run, name, str(variant) if variant.parts else name)

    def _progress(self, run: RunDir, name: str, variant: str) -> TrialProgress:
        spec = self._cached(run.path / "config.yaml", lambda: readable_spec(run))
        if spec is None:
            reason = "config.yaml cannot be read, or differs from that of the training"
            return TrialProgress(name=name, variant=variant, state="damaged", reason=reason)
        records = self._cached(run.path / "metrics.jsonl", lambda: readable_metrics(run))
        meta = self._cached(run.path / "meta.json", lambda: run.read("meta.json"))
        state, reason = live_state(run)
        return TrialProgress(
            name=name,
            variant=variant,
            state=state,
            reason=reason,
            epochs=max((r["epoch"] for r in records if is_epoch(r.get("epoch"))), default=0),
            planned=spec.train.epochs,
            headline=spec.task.row.headline,
            curve=headline_curve(records, spec),
            epoch_seconds=_epoch_seconds(records, meta, spec),
        )

    def _cached(self, path: Path, read: Callable[[], Content]) -> Content:
        now = _signature(path)
        then, content = self._read.get(path, (None, None))
        if then != now:
            content = read()
            self._read[path] = now, content
        return content


def _signature(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file: (time in ns, bytes, inode); zeros if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _epoch_seconds(
    records: Sequence[dict[str, Any]], meta: dict[str, Any], spec: ExperimentSpec
) -> float | None:
    """Return the duration of the last epoch; None if the files do not say."""
    images, limit = meta.get("num_train"), spec.train.limit_batches
    speed = records[-1].get("images_per_second") if records else None
    if is_number(images) and is_number(speed) and speed > 1e-9:
        most = limit * spec.train.batch_size if limit else images
        return min(images, most) / speed
    return None


def find_watched(name: str | None) -> Path:
    """Return the folder of a study, a run or several runs by path or name under runs/.

    Without a name, it is the study or run whose state changed last.
    """
    if name is None:
        runs = list_runs(RUNS)
        if not runs:
            raise InputError("no runs yet; start with: vitcli train")
        newest = runs[-1].path
        return next((path for path in newest.parents if read_study(path)), newest)
    for folder in (Path(name), RUNS / name) if name else ():
        if folder.is_dir() and (read_study(folder) or list_runs(folder)):
            return folder
    raise InputError(
        f"no study or run under runs/ is called {name!r}; 'vitcli runs ls' lists them, and"
        " 'vitcli ablate STUDY' starts a study"
    )
