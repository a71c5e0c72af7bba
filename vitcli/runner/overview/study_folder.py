"""The folder of a study: its trials and their states, from plan.json and the run folders. No torch.

Reading is cheap and never fails, so that it can be repeated while trials are training.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.files import readable_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import State, read_record

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

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(trial.variant for trial in self.trials.values()))

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
