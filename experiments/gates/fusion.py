"""Gates of the task fusion: does it gain from sounds, and only from those of the images' classes?

Usage: python -m experiments.gates.fusion [-o FILE] [--seeds N] [--resume] [CASE ...]
Trains the experiment fusion in several cases. All are measured on the test images, with speakers
that no training has:
  fusion    the training as it is
  image     the baseline that sees only images
  sound     the baseline that hears only sounds
  shuffled  a control: each image has the sound of a random image, in training and test
  contrast  with the contrastive loss, for two epochs without noise
The gates compare the means over the seeds. By default all cases are measured and written to
experiments/results/tasks/fusion.json.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.device import environment
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

RESULTS = Path(__file__).parents[1] / "results" / "tasks"
ALONE = {"task.modality_dropout": 0.0, "task.unimodal": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "fusion": {},
    "image": {"task.modalities": "image"} | ALONE,
    "sound": {"task.modalities": "sound"} | ALONE,
    "shuffled": {"task.shuffle_sounds": True},
    "contrast": {
        "train.epochs": 2,
        "task.contrast": 0.1,
        "task.modality_dropout": 0.0,
        "task.image_noise": 0.0,
        "task.sound_noise": 0.0,
    },
}
NUMBERS = ("accuracy", "image_accuracy", "sound_accuracy", "retrieval")
WEAK = (0.5, 0.7)
"""Accuracies of a single modality that count as about 60 %."""
MIN_GAIN = 0.10
"""Smallest gain in accuracy over the best single modality."""
MAX_GAP = 0.03
"""Largest difference of accuracy from images alone, with shuffled sounds and without sounds."""
CHANCE, MIN_RETRIEVAL = 1 / 6, 5.0
"""Retrieval by chance with the six classes of gratings, and the smallest multiple of it."""
Trial = Mapping[str, float]


def measure(case: str, seed: int = 0) -> dict[str, float]:
    """Return the numbers of one training on the test images."""
    changes = CASES[case] | {"seed": seed, "train.precision": "fp32"}
    with tempfile.TemporaryDirectory() as folder:
        request = Request(output=Path(folder) / "run", device="cpu")
        result = train(load_experiment("fusion", changes), request).result
    found = {name: result[f"test_{name}"] for name in NUMBERS if f"test_{name}" in result}
    return {"seed": seed, **found}


def failures(results: Mapping[str, Sequence[Trial]]) -> list[str]:
    """Return the gates that do not hold, with their numbers. All cases must be there."""
    mean = {
        case: {name: statistics.mean(t[name] for t in trials) for name in trials[0]}
        for case, trials in results.items()
    }
    image, sound, both = mean["image"]["accuracy"], mean["sound"]["accuracy"], mean["fusion"]
    best = max(image, sound, both["image_accuracy"], both["sound_accuracy"])
    gain, lost = both["accuracy"] - best, image - both["image_accuracy"]
    moved = mean["shuffled"]["accuracy"] - image
    times = mean["contrast"]["retrieval"] / CHANCE
    holds = {
        f"images alone reach {image:.3f}": WEAK[0] <= image <= WEAK[1],
        f"sounds alone reach {sound:.3f}": WEAK[0] <= sound <= WEAK[1],
        f"fusion gains {gain:.3f} over {best:.3f}": gain >= MIN_GAIN,
        f"shuffled sounds change images alone by {moved:.3f}": abs(moved) <= MAX_GAP,
        f"without its sound, fusion loses {lost:.3f} to images alone": lost <= MAX_GAP,
        f"retrieval is {times:.1f} times chance": times >= MIN_RETRIEVAL,
    }
    return [text for text, is_right in holds.items() if not is_right]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="by default all")
    parser.add_argument("--seeds", type=int, default=3, help="number of random seeds")
    parser.add_argument("--resume", action="store_true", help="keep the trainings in the file")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "fusion.json")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, float]]] = {}
    if options.resume and options.output.exists():
        rows = json.loads(options.output.read_text())["results"]
    for seed in range(options.seeds):
        for case in options.cases or CASES:
            if len(rows.setdefault(case, [])) == seed:
                rows[case].append(measure(case, seed))
                print(json.dumps({case: rows[case][-1]}), flush=True)  # noqa: T201
                options.output.write_text(json.dumps(document(rows), indent=1) + "\n")


def document(rows: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    """Return the content of the result file."""
    spec = load_experiment("fusion").spec
    failed = failures(rows) if rows.keys() == CASES.keys() else ["cases are missing"]
    return {
        "command": "python -m experiments.gates.fusion",
        "date": date.today().isoformat(),
        "environment": environment(torch.device("cpu")),
        "gate": {
            "weak": WEAK,
            "min_gain": MIN_GAIN,
            "max_gap": MAX_GAP,
            "min_retrieval": MIN_RETRIEVAL,
        },
        "data": spec.data.name,
        "epochs": spec.train.epochs,
        "task": spec.task.model_dump(),
        "cases": {case: CASES[case] for case in rows},
        "results": rows,
        "failures": failed,
        "passed": not failed,
    }


if __name__ == "__main__":
    main()
