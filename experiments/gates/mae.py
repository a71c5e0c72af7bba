"""Gate of the task ``mae``: is the reconstruction better than simple predictions, and is it useful?

Usage: python -m experiments.gates.mae [-o FILE] [--data-dir DIR] [--seeds N] [SETTING ...]
Trains the experiment pretrain-mae on few images and compares the error on masked patches of test
images with that of predictions without a model, and a linear probe of the encoder with one of the
encoder before the training. A setting is cifar10 or shapes; by default both are measured. Numbers
are written to experiments/results/tasks/mae.json after each setting.
"""

import argparse
import json
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitcli.core.data.source import DataSet, evenly_spaced
from vitcli.core.metrics.classification import accuracy
from vitcli.core.metrics.linear_probe import apply, linear_probe
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import GENERATED, ExperimentSpec
from vitcli.core.train.training import Training
from vitcli.runner.data.load import load_data
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.machine.device import environment
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.text import ignore_message

RESULT = Path(__file__).parents[1] / "results" / "tasks" / "mae.json"
MAX_RATIO = 0.85
"""Largest error that passes, as a share of the error of the nearest visible patch's colour."""
MIN_GAIN = 0.02
"""Smallest gain in accuracy of the probe that passes."""
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set, numbers of images, and changes of the experiment."""

    num_train: int
    num_test: int
    changes: dict[str, Any] = field(default_factory=dict)


SETTINGS = {
    "cifar10": Setting(num_train=5000, num_test=2000, changes={"train.epochs": 10}),
    "shapes": Setting(
        num_train=2000, num_test=1000, changes={"train.epochs": 16, "data.name": "shapes"}
    ),
}


def measure(name: str, seed: int = 0, data_dir: Path | None = None) -> dict[str, Any]:
    """Return the numbers of one training in a setting."""
    setting = SETTINGS[name]
    fixed = {"seed": seed, "train.precision": "fp32", "train.batch_size": 64}
    spec = load_experiment("pretrain-mae", setting.changes | fixed).spec
    data = load_data(spec.data, data_dir=None if spec.data.name in GENERATED else data_dir)
    data = replace(
        data,
        train=evenly_spaced(data.train, setting.num_train),
        test=evenly_spaced(data.test, setting.num_test),
    )
    spec = resolve(spec, data)
    module = new_module(spec)
    task = task_class(spec)(spec, module)
    before = probe(task, module, data)
    train(spec, task, module, data)
    measured = task.measure(task.outputs(module, data.test))
    found = {"probe_before": before, "probe_after": probe(task, module, data)}
    return {"seed": seed} | measured | found


def train(spec: ExperimentSpec, task: Task, module: nn.Module, data: DataSet) -> None:
    choose_kernels(module, CPU, None, "auto", ignore_message)
    state = Training(spec, task, data)
    for epoch in range(spec.train.epochs):
        for _ in state.run_epoch(epoch):
            pass


def probe(task: Task, module: nn.Module, data: DataSet) -> float:
    """Return the test accuracy of a linear probe on the features of the encoder."""
    known, asked = (task.features(module, images) for images in (data.train, data.test))
    logits = apply(linear_probe(known, data.train.labels, data.num_classes).layer, asked)
    return accuracy(logits, data.test.labels)


def passes(found: dict[str, Any]) -> bool:
    """Return whether one training passes the gate."""
    is_better = found["masked_mse"] <= MAX_RATIO * found["nearest_mse"]
    return is_better and found["probe_after"] >= found["probe_before"] + MIN_GAIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="by default all")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3, help="number of random seeds")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    for name in options.settings or SETTINGS:
        rows = [measure(name, seed, options.data_dir) for seed in range(options.seeds)]
        save(options.output, name, rows)
        print(json.dumps(rows, indent=1))  # noqa: T201


def save(path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write the numbers of a setting to a file; those of other settings stay."""
    known = json.loads(path.read_text())["settings"] if path.exists() else {}
    found = {
        "date": date.today().isoformat(),
        "environment": environment(CPU),
        **asdict(SETTINGS[name]),
        "passed": all(map(passes, rows)),
        "rows": rows,
    }
    document = {
        "command": "python -m experiments.gates.mae",
        "gate": {"max_ratio_to_nearest_patch": MAX_RATIO, "min_probe_gain": MIN_GAIN},
        "settings": known | {name: found},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
