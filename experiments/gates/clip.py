"""Gate of the task clip: do captions teach the images, and what does text alone recognise then?

Usage: python -m experiments.gates.clip [-o FILE] [--data-dir DIR] [--seeds N] [--resume] [CASE ...]
Trains the experiment clip on few images in several cases:
  templates        CIFAR-10; prompts at the test are templates that no training caption has (L0)
  shuffled         the same, but the images of each class have the captions of all classes equally
                   often: not above chance
  transformations  CIFAR-10; combinations of transformation and class that were not trained (L1)
  superclasses     CIFAR-10 without the images of cat and truck (L2): their words occur in captions
                   of other animals and vehicles
  shapes, shapes-shuffled
                   as templates and shuffled, on the generated set
By default all cases are measured and written to experiments/results/tasks/clip.json. The levels L1
and L2 have no gate; their numbers are reported.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitcli.core.data.batches import EpochPlan
from vitcli.core.data.source import DataSet, evenly_spaced
from vitcli.core.objectives.objective import Task
from vitcli.core.randomness import keyed_generator
from vitcli.core.train.training import Training
from vitcli.plugins.clip.clip import ContrastiveTask
from vitcli.plugins.clip.tokens import Drawn
from vitcli.runner.data.load import load_data
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.experiment.resolve import resolve
from vitcli.runner.machine.device import environment
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.text import ignore_message

RESULT = Path(__file__).parents[1] / "results" / "tasks" / "clip.json"
MIN_HELD_OUT, MAX_GAP, MAX_SHUFFLED = 0.30, 0.03, 0.13
"""Smallest accuracy with held-out templates, its largest difference to trained templates, and the
largest accuracy with shuffled captions. Chance is 0.1."""
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Changes of the experiment, and whether captions are shuffled."""

    num_train: int = 3000
    num_test: int = 4000
    epochs: int = 8
    shuffled: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


SHAPES = {
    "data.name": "shapes",
    "data.augment.flip": "none",
    "data.augment.crop_padding": 2,
    "train.batch_size": 64,
}
CASES: dict[str, Case] = {
    "templates": Case(),
    "shuffled": Case(shuffled=True),
    "shapes": Case(num_train=6000, num_test=2000, epochs=8, changes=SHAPES),
    "shapes-shuffled": Case(num_train=6000, num_test=2000, epochs=8, shuffled=True, changes=SHAPES),
    "superclasses": Case(
        changes={"task.captions": "superclasses", "task.held_out_classes": ["cat", "truck"]},
    ),
    "transformations": Case(changes={"task.captions": "transformations"}),
}


class Shuffled(ContrastiveTask):
    """The task with captions that say nothing about the images of the training.

    The images of each class have the captions of all classes equally often. A plain permutation
    leaves differences of chance: with 300 images a class, the class says a little about the
    caption, and accuracies of single trainings scatter widely around chance (one had 13.5 %).
    """

    def draw_captions(self, data: DataSet, rows: EpochPlan) -> Drawn:
        labels = shuffled_labels(data.train.labels, self.spec.seed)
        return super().draw_captions(replace(data, train=replace(data.train, labels=labels)), rows)


def shuffled_labels(labels: Tensor, seed: int) -> Tensor:
    """Return labels that are independent of the given ones, (N,) -> (N,)."""
    num_classes = int(labels.max()) + 1
    out = torch.empty_like(labels)
    for label in range(num_classes):
        places = (labels == label).nonzero().flatten()
        order = torch.randperm(len(places), generator=keyed_generator("shuffled", seed, label))
        out[places[order]] = (torch.arange(len(places)) + label) % num_classes
    return out


def measure(name: str, seed: int = 0, data_dir: Path | None = None) -> dict[str, Any]:
    """Return the numbers of one training on its test images."""
    case = CASES[name]
    fixed = {"seed": seed, "train.precision": "fp32", "train.epochs": case.epochs}
    spec = load_experiment("clip", dict(case.changes) | fixed).spec
    data = load_data(spec.data, data_dir=data_dir)
    data = replace(
        data,
        train=evenly_spaced(data.train, case.num_train),
        test=evenly_spaced(data.test, case.num_test),
    )
    spec = resolve(spec, data)
    module = filled_module(spec, data)
    task: Task = (Shuffled if case.shuffled else ContrastiveTask)(spec, module)
    choose_kernels(module, CPU, None, "auto", ignore_message)
    state, means = Training(spec, task, data), {}
    module.train()
    for epoch in range(spec.train.epochs):
        for _ in state.run_epoch(epoch):
            pass
        means = state.take_means()
    trained = {f"train_{name}": means[name] for name in task.spec.task.row.reports if name in means}
    return {"seed": seed} | task.measure(task.outputs(module, data.test)) | trained


def failures(name: str, found: Mapping[str, float]) -> Iterator[str]:
    """Yield the gates that one training does not pass."""
    held_out, trained = found["zero_shot_accuracy"], found["trained_prompts_accuracy"]
    if CASES[name].shuffled:
        if held_out > MAX_SHUFFLED:
            yield f"shuffled captions reach {held_out:.3f}"
    elif name in ("templates", "shapes"):
        if held_out < MIN_HELD_OUT:
            yield f"held-out templates reach {held_out:.3f}"
        if abs(held_out - trained) > MAX_GAP:
            yield f"held-out and trained templates differ by {held_out - trained:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="by default all")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--seeds", type=int, default=3, help="number of random seeds")
    parser.add_argument("--resume", action="store_true", help="keep the trainings in the file")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    if options.resume and options.output.exists():
        rows = json.loads(options.output.read_text())["results"]
    for seed in range(options.seeds):
        for name in options.cases or CASES:
            if len(rows.setdefault(name, [])) == seed:
                place = None if "data.name" in CASES[name].changes else options.data_dir
                rows[name].append(measure(name, seed, place))
                print(json.dumps({name: rows[name][-1]}), flush=True)  # noqa: T201
                options.output.write_text(json.dumps(document(rows), indent=1) + "\n")


def document(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of the result file."""
    failed = [text for name, each in rows.items() for row in each for text in failures(name, row)]
    return {
        "command": "python -m experiments.gates.clip",
        "date": date.today().isoformat(),
        "environment": environment(CPU),
        "gate": {
            "min_held_out": MIN_HELD_OUT,
            "max_gap": MAX_GAP,
            "max_shuffled": MAX_SHUFFLED,
        },
        "settings": {name: vars(CASES[name]) for name in rows},
        "results": rows,
        "failed": failed,
    }


if __name__ == "__main__":
    main()
