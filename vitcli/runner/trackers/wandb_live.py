"""A run in Weights & Biases; its variables, such as ``WANDB_MODE``, have their usual meaning."""

import os
import shlex
from pathlib import Path

import wandb

from vitcli.runner.trackers.exported import ExportedRun, Point


class WandbRun:
    """See ``live.Tracker``. The experiment is the group of the run."""

    def __init__(self, run: ExportedRun, folder: Path, known: str | None, offline: bool) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "vitcli"),
            name=run.name,
            group=run.experiment,
            config=run.config | run.facts,
            dir=folder,
            id=known,
            resume="allow" if known else None,
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off"),
        )
        self.id = self._run.id
        place = Path(self._run.dir).parent
        self.where = self._run.url or shlex.join(["wandb", "sync", str(place)])

    def log(self, point: Point) -> None:
        self._run.log(point.values | {"epoch": point.epoch}, step=point.step)

    def finish(self, run: ExportedRun) -> None:
        self._run.summary.update(run.numbers | {"state": run.state})
        self._run.finish(exit_code=0 if run.state == "finished" else 1)
