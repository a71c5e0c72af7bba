"""Coloured pictures with tables of their labels or of a number, and trainings on them."""

import csv
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

NAMES = ("blue", "green", "red")
SHARES = (0.1, 0.5, 0.7)
"""Shares of the pictures that have each label."""
MODEL = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
FIELDS: dict[str, Any] = {
    "model": MODEL | {"pool": "mean"},
    "optim": {"lr": 5e-3, "warmup_epochs": 1.0},
    "train": {"epochs": 12, "batch_size": 16},
}


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="session")
def colours(tmp_path_factory) -> Path:
    """Return a folder with ``labels.csv`` and ``target.csv`` of 120 pictures, 40 to test on.

    A picture has high levels in the channels of its labels. The number is 1,000 plus ten times the
    level of red.
    """
    place, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    labels, targets = [("path", "labels", "split")], [("path", "target", "split")]
    for row in range(120):
        has = rng.random(3) < SHARES
        levels = np.where(has, rng.uniform(120, 200, 3), rng.uniform(20, 90, 3))[::-1]
        pixels = rng.normal(levels, 15, (8, 8, 3)).clip(0, 255).astype("uint8")
        name, split = f"{row}.png", "test" if row % 3 == 2 else "train"
        Image.fromarray(pixels).save(place / name)
        labels.append((name, ";".join(np.array(NAMES)[has]), split))
        targets.append((name, f"{1000 + 10 * levels[0]:.1f}", split))
    write_table(place / "labels.csv", labels)
    write_table(place / "target.csv", targets)
    return place


@pytest.fixture
def fit(here, colours) -> Callable[..., RunRecord]:
    """Return a function that trains a task once, and copies the run into a folder."""

    def fit(task: str, folder: str, changes: dict[str, Any] | None = None) -> RunRecord:
        table = colours / ("labels.csv" if task == "multilabel" else "target.csv")
        lines = [f"{name}: {value}" for name, value in FIELDS.items()]
        lines += [f"task: {{name: {task}}}", f"data: {{name: 'csv:{table}'}}"]
        path = here / f"{task}.yaml"
        path.write_text("\n".join(lines).replace("'", '"') + "\n")
        source = colours / f"run-{task}-{sorted((changes or {}).items())}".replace("/", "_")
        if not source.exists():
            train(load_experiment(str(path), changes), Request(output=source))
        return read_record(RunDir(Path(shutil.copytree(source, folder))))

    return fit
