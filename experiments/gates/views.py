"""Gates of the tasks on views: do they learn classes from gratings, and for the right reason?

Usage: python -m experiments.gates.views TASK [-o FILE] [--seeds N] [CASE ...]
TASK is dino or lejepa. Trains the experiment gratings-TASK in several cases, and measures the k-NN
accuracy of test images before and after the training:
  plain           the training as it is: it must gain at least 20 points, without an alarm
  mismatched      the views of a pair come from different images, so there is nothing to learn:
                  the accuracy must not rise, and the loss (dino) must be that by chance
  no_centring     (dino) without the centre: the monitor must report equal peaks
  no_sharpening   (dino) the teacher is as soft as the student: the monitor must report uniformity
  no_regulariser  (lejepa) without SIGReg: the monitor must report equal embeddings
By default all cases of the task are measured and written to experiments/results/tasks/TASK.json.
"""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from vitcli.core.data.batches import Batch, EpochPlan
from vitcli.core.data.source import DataSet
from vitcli.core.objectives.objective import task_class
from vitcli.core.train.training import Training
from vitcli.plugins.views.view_task import ViewTask
from vitcli.runner.data.load import load_data
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.machine.device import environment
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.text import ignore_message

RESULTS = Path(__file__).parents[1] / "results" / "tasks"
MIN_GAIN = 0.2
"""Smallest gain in k-NN accuracy of a plain training that passes."""
MAX_LOSS_GAP = 0.02
"""Tolerance of the loss by chance of a mismatched training, in nats (dino)."""
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Changes of the experiment, and the word that the monitor must say (none: it is silent)."""

    alarm: str | None = None
    mismatched: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


SHORT = {"train.epochs": 3}
"""Enough for a collapse."""
CASES: dict[str, dict[str, Case]] = {
    "dino": {
        "plain": Case(),
        "mismatched": Case(mismatched=True, alarm="uniform"),
        "no_centring": Case(alarm="same peak", changes=SHORT | {"task.center_momentum": 1.0}),
        "no_sharpening": Case(alarm="uniform", changes=SHORT | {"task.teacher_temperature": 0.1}),
    },
    "lejepa": {
        "plain": Case(),
        "mismatched": Case(mismatched=True),
        "no_regulariser": Case(
            alarm="nearly the same", changes=SHORT | {"task.sigreg_weight": 0.0}
        ),
    },
}


def mismatch(kind: type[ViewTask]) -> type[ViewTask]:
    """Return the task with each view of an image taken from another image of the batch."""

    class Mismatched(kind):  # type: ignore[valid-type, misc]
        def view_batch(self, pixels: torch.Tensor, rows: EpochPlan) -> Batch:
            batch: Batch = super().view_batch(pixels, rows)
            shift = 0
            for name in ("images", "local"):
                views = []
                for view in batch[name].unbind(1):
                    views.append(view.roll(shift, 0))
                    shift += 1
                batch[name] = torch.stack(views, dim=1)
            return batch

    return Mismatched


def measure(task_name: str, case_name: str, seed: int = 0) -> dict[str, Any]:
    """Return the numbers of one training."""
    case = CASES[task_name][case_name]
    fixed = {"seed": seed, "train.precision": "fp32"}
    spec = load_experiment(f"gratings-{task_name}", dict(case.changes) | fixed).spec
    data = load_data(spec.data)
    spec = resolve(spec, data)
    kind = task_class(spec)
    assert issubclass(kind, ViewTask)
    module = new_module(spec)
    task = (mismatch(kind) if case.mismatched else kind)(spec, module)
    before = accuracy(task, data)
    choose_kernels(module, CPU, None, "auto", ignore_message)
    state, alarms, means = Training(spec, task, data), [], {}
    module.train()
    for epoch in range(spec.train.epochs):
        for _ in state.run_epoch(epoch):
            pass
        means = state.take_means()
        alarms.append(task.diagnose(means))
    found: dict[str, Any] = {"seed": seed, "knn_before": before}
    found |= {"knn_after": accuracy(task, data)} | means
    found["alarms"] = sorted({alarm for alarm in alarms if alarm})
    return found


def accuracy(task: ViewTask, data: DataSet) -> float:
    return task.measure(task.outputs(task.module, data.test))["knn_accuracy"]


def passes(task_name: str, case_name: str, found: Mapping[str, Any]) -> bool:
    """Return whether one training gave what its case demands."""
    case = CASES[task_name][case_name]
    alarms = found["alarms"]
    is_right = all(case.alarm in each for each in alarms) if case.alarm else not alarms
    if case.mismatched:
        no_gain = found["knn_after"] <= found["knn_before"]
        return is_right and no_gain and (task_name != "dino" or is_chance(found))
    if case.alarm:
        return is_right and bool(alarms)
    return is_right and found["knn_after"] >= found["knn_before"] + MIN_GAIN


def is_chance(found: Mapping[str, Any]) -> bool:
    """Return whether the student of DINO predicts nothing: its loss is the logarithm of K."""
    most = math.log(load_experiment("gratings-dino").spec.task.model_dump()["num_prototypes"])
    return bool(abs(found["loss"] - most) <= MAX_LOSS_GAP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=CASES)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="by default all")
    parser.add_argument("--seeds", type=int, default=3, help="number of random seeds")
    parser.add_argument("--resume", action="store_true", help="keep the trainings in the file")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    output = options.output or RESULTS / f"{options.task}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    if options.resume and output.exists():
        rows = json.loads(output.read_text())["results"]
    for seed in range(options.seeds):
        for name in options.cases or CASES[options.task]:
            if len(rows.setdefault(name, [])) == seed:
                rows[name].append(measure(options.task, name, seed))
                print(json.dumps({name: rows[name][-1]}), flush=True)  # noqa: T201
                output.write_text(json.dumps(document(options.task, rows), indent=1) + "\n")


def document(task_name: str, rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of the result file."""
    return {
        "command": f"python -m experiments.gates.views {task_name}",
        "date": date.today().isoformat(),
        "environment": environment(CPU),
        "gate": {"min_gain": MIN_GAIN, "max_loss_gap": MAX_LOSS_GAP},
        "cases": {name: asdict(CASES[task_name][name]) for name in rows},
        "results": rows,
        "passed": all(passes(task_name, name, found) for name in rows for found in rows[name]),
    }


if __name__ == "__main__":
    main()
