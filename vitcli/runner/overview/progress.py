"""The progress of runs while they train: of a study, or of every run below a folder. No torch.

Reading is cheap and never fails, so that it can be repeated meanwhile; a file is read again only
after it has changed.
"""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from vitcli.runner.data.listing import file_version
from vitcli.runner.engines.drivers import PLAN, other_drivers
from vitcli.runner.files import readable_json
from vitcli.runner.run.folder import FILES, RESULT_STATES, RunDir, list_runs
from vitcli.runner.run.record import RunRecord, State, is_epoch, is_number, read_record
from vitcli.runner.text import duration, natural_key, quantity
from vitcli.runner.train.events import seconds_left

ENDED = (*RESULT_STATES, "saved")
TRIAL_FOLDER = r"^[A-Za-z0-9_.=,+/-]{1,200}$"
"""Folder of a trial in plan.json, relative to that of the study."""
SEED_FOLDER = re.compile(r"seed(\d+)")


class PlannedTrial(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    variant: str
    config: dict[str, Any] = {}


class StudyFolder(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    path: Path
    study: str
    command: str = ""
    trials: dict[Annotated[str, StringConstraints(pattern=TRIAL_FOLDER)], PlannedTrial]
    saved: list[str] = []
    """Folders of trials whose result was saved earlier, so that they are not trained."""

    def states(self) -> dict[str, State]:
        runs = {folder: RunDir(self.path / folder) for folder in self.trials}
        return {
            folder: read_record(run).state if run.exists else self.state_without_run(folder)
            for folder, run in runs.items()
        }

    def state_without_run(self, folder: str) -> State:
        return "saved" if folder in self.saved else "missing"


def split_seed(path: Path) -> tuple[Path, str]:
    """Return the folder that the seeds of a variant share, and the seed; a lone run has no seed."""
    found = SEED_FOLDER.fullmatch(path.name)
    return (path.parent, found[1]) if found and path.parent.name else (path, "")


def read_study(folder: Path) -> StudyFolder | None:
    try:
        return StudyFolder.model_validate(readable_json(folder / PLAN) | {"path": folder})
    except ValidationError:
        return None


def find_studies(folder: Path) -> dict[Path, StudyFolder]:
    studies = [read_study(path.parent) for path in sorted(folder.rglob(PLAN))]
    return {study.path: study for study in studies if study}


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
    trials: tuple[RunRecord, ...]
    """Their names are relative to the folder."""

    @property
    def num_ended(self) -> int:
        return sum(trial.state in ENDED for trial in self.trials)

    @property
    def has_ended(self) -> bool:
        return not self.may_grow and self.num_ended == len(self.trials)

    @property
    def seconds_left(self) -> float | None:
        running = sum(trial.state == "running" for trial in self.trials)
        begun, usual = [], []
        for trial in self.trials:
            seconds, planned = epoch_seconds(trial), trial.epochs_planned
            if seconds and planned:
                usual.append(planned * seconds)
                if trial.state not in ENDED:
                    begun.append(max(0, planned - trial.epochs) * seconds)
        waiting = len(self.trials) - self.num_ended - len(begun)
        return seconds_left(begun, waiting, usual, running) if running else None


class Watcher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records: dict[Path, tuple[Any, RunRecord]] = {}

    def read(self) -> Progress:
        study = read_study(self.folder)
        if study:
            trials = [self._trial(study, name) for name in study.trials]
        else:
            trials = [self._run(run) for run in list_runs(self.folder)]
            trials.sort(key=lambda trial: natural_key(trial.name))
        may_grow = study is not None and other_drivers(self.folder) > 0
        again = shlex.join(["vitcli", "ablate", study.study]) if study else ""
        return Progress(
            name=RunDir(self.folder).name,
            folder=self.folder,
            command=study.command or again if study else "",
            is_study=study is not None,
            is_running=may_grow or any(trial.state == "running" for trial in trials),
            may_grow=may_grow,
            trials=tuple(trials),
        )

    def _trial(self, study: StudyFolder, name: str) -> RunRecord:
        planned, run = study.trials[name], RunDir(self.folder / name)
        if run.exists:
            return self._record(run, name, planned.variant)
        state = study.state_without_run(name)
        return RunRecord(name=name, variant=planned.variant, state=state, config=planned.config)

    def _run(self, run: RunDir) -> RunRecord:
        path = run.path.relative_to(self.folder)
        variant, _ = split_seed(path)
        name = str(path) if path.parts else run.name
        return self._record(run, name, str(variant) if variant.parts else name)

    def _record(self, run: RunDir, name: str, variant: str) -> RunRecord:
        now = [file_version(run.path / name) for name in FILES]
        then, record = self._records.get(run.path, (None, None))
        if record is None or then != now:
            record = read_record(run).changed(name=name, variant=variant)
            self._records[run.path] = now, record
        return record.at_this_moment()


def epoch_seconds(run: RunRecord) -> float | None:
    """Return the duration of the last epoch without its evaluation; None if no file says it."""
    speed = run.metrics[-1].get("images_per_second") if run.metrics else None
    if run.num_train is None or not is_number(speed) or speed <= 1e-9:
        return None
    limit, batch_size = run.setting("train.limit_batches"), run.setting("train.batch_size")
    is_limited = is_epoch(limit) and is_epoch(batch_size)
    return min(run.num_train, limit * batch_size if is_limited else run.num_train) / speed


def summary(progress: Progress) -> str:
    counts = Counter(trial.state for trial in progress.trials)
    words = [f"{count} {state}" for state, count in sorted(counts.items())]
    left = progress.seconds_left
    words += [f"about {duration(left)} left"] if left is not None else []
    total = quantity(len(progress.trials), "trial" if progress.is_study else "run")
    return f"{total}: {', '.join(words)}"
