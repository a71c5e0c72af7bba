"""A tiny experiment for every row of the table of tasks, and for a row that a test adds."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests import denoising
from vitcli.core.spec import TASKS
from vitcli.core.spec.task import TaskRow
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train as run_training

ADDED = "denoise"
NAMES = [*TASKS, ADDED]
MODEL = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
EXPERIMENT: dict[str, dict[str, Any]] = {
    "model": MODEL | {"pool": "mean", "proj_drop": 0.1, "drop_path": 0.1},
    "optim": {"lr": 2e-3, "warmup_epochs": 1.0},
    "train": {"epochs": 2, "batch_size": 16},
}
OPTIONAL: dict[str, Any] = {
    "data.augment": {"crop_padding": 1, "flip": "random"},
    "train.ema_decay": 0.9,
}
"""Fields that a task may refuse, such as a task that makes its own views or its own average."""
STEPS = 3


def row_of(name: str) -> TaskRow:
    return denoising.ROW if name == ADDED else TASKS[name]


def draw_gratings(place: Path) -> None:
    """Draw 16x16 pictures of two classes, lying and standing bars: 48 to train on, 12 to test."""
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(16)[:, None] * np.pi / 4).repeat(16, 1)
    for split, count in (("train", 24), ("test", 6)):
        for name, bars in (("lying", wave), ("standing", wave.T)):
            folder = place / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = 128 + 60 * bars[..., None] + rng.normal(0, 20, (16, 16, 3))
                Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / f"{i}.png")


def draw_targets(place: Path) -> Path:
    """Write a table with a number of each picture: 0 to 5, and 100 more for standing bars."""
    paths = sorted(place.glob("*/*/*.png"))
    lines = [
        f"{path.relative_to(place)},{int(path.stem) % 6 + 100 * (path.parent.name == 'standing')}"
        f",{path.parts[-3]}"
        for path in paths
    ]
    table = place / "targets.csv"
    table.write_text("\n".join(["path,target,split", *lines]) + "\n")
    return table


class TinyTask:
    def __init__(self, name: str, place: Path) -> None:
        self.name, self.row, self.place = name, row_of(name), place
        self.pictures = place / "gratings"
        if not self.pictures.exists():
            draw_gratings(self.pictures)
        fields = {"name": name}
        if "teacher" in self.row.spec_class.model_fields:
            fields["teacher"] = str(place / "teacher")
            if not (place / "teacher").exists():
                TinyTask("classify", place).finished(fields["teacher"])
        self.data = f"imagefolder:{self.pictures}"
        """The pictures with their classes."""
        own = f"csv:{draw_targets(self.pictures)}" if name == "regress" else self.data
        self.path = place / f"{name}.yaml"
        whole = {section: dict(values) for section, values in EXPERIMENT.items()}
        whole |= {"task": fields, "data": {"name": own}}
        self.path.write_text(json.dumps(whole))  # JSON is YAML, too
        for field, value in self.accepted(OPTIONAL).items():
            section, _, key = field.partition(".")
            whole[section][key] = value
        self.path.write_text(json.dumps(whole))

    @property
    def measure(self) -> str:
        return f"test_{self.row.headline.name}"

    def experiment(self, changes: Mapping[str, Any] | None = None) -> Experiment:
        return load_experiment(str(self.path), dict(changes or {}))

    def accepted(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes that the task accepts. A refusal names the field."""
        found = {}
        for field, value in changes.items():
            try:
                self.experiment({field: value})
                found[field] = value
            except ConfigError as error:
                if f"{field}: " not in str(error):
                    raise
        return found

    def train(self, folder: str, changes: Mapping[str, Any] | None = None) -> RunDir:
        return run_training(self.experiment(changes), Request(output=Path(folder))).folder

    def finished(self, folder: str, changes: Mapping[str, Any] | None = None) -> str:
        source = self.place / f"run-{self.name}-{sorted((changes or {}).items())}"
        if not (source / "result.json").exists():
            torch.manual_seed(0)
            self.train(str(source), changes)
        shutil.copytree(source, folder)
        return folder
