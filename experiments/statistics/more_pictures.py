"""Measure how often the interval of `vitcli choose` holds what twice as many pictures add.

A data set of n images is drawn from a large one. The learning curve of its probe predicts the gain
of n more. Then n more are drawn, and both probes are measured on all images that are left. The
features are those of the bundled model on images that it has not learned from, and raw pixels.
How often two models of equal accuracy are found to differ is measured on data sets that are drawn
as in folds.py. CIFAR-10 is needed; --data-dir is its folder. By default all is written to
experiments/results/statistics/more_pictures.json, after each round.
"""

import argparse
import json
from collections.abc import Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.statistics.folds import CLASSES, DISTANCE, FEATURES, LEARNERS
from vitcli.core.data.batches import split_batches
from vitcli.core.data.source import Images
from vitcli.core.metrics.linear_probe import apply, linear_probe
from vitcli.core.spec import DataSpec
from vitcli.plugins.choose.choose import error_of
from vitcli.plugins.choose.curve import extrapolate, fold_probes, groups_needed, learning_curve
from vitcli.runner.data.folds import spread
from vitcli.runner.data.load import load_data
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.machine.device import source_commit
from vitcli.runner.run.folder import find_run
from vitcli.runner.study.significance import ALPHA

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "more_pictures.json"
MODEL = "cifar10-pocket"
SOURCES = {"CIFAR-10": "cifar10", "scenes": "scenes", "shapes": "shapes", "gratings": "gratings"}
PIXELS = ("CIFAR-10", "gratings")
UNEQUAL = {3: 1.0, 5: 0.5, 7: 0.3}
"""Class of CIFAR-10 -> share of its images: cats, dogs and horses."""
MOST = 6000
FIRST = 2000
"""First seed; earlier ones were drawn to choose ``LAW`` and ``POWERS``."""
COUNTS = (100, 300)
FOLDS = 5
Case = tuple[Tensor, Tensor]


def cases(data_dir: Path | None) -> dict[str, Case]:
    """Return features (N, F) and labels (N,) of each kind of images."""
    spec, model, found = find_run(MODEL).spec(), load_model(MODEL), dict[str, Case]()
    for name, source in SOURCES.items():
        folder = data_dir if source == "cifar10" else None
        data = load_data(DataSpec(name=source), data_dir=folder)
        images = data.test if source == "cifar10" else data.train
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        images = images[order[:MOST]]
        found[f"{name}, bundled model"] = features(model, images, spec), images.labels
        if name not in PIXELS:
            continue
        pixels = F.avg_pool2d(images.pixels[:].float() / 255, 4).flatten(1)
        found[f"{name}, pixels"] = pixels, images.labels
    known, labels = found["CIFAR-10, bundled model"]
    chance = torch.rand(len(labels), generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([UNEQUAL.get(label, 0.0) for label in range(10)])
    chosen = chance < shares[labels]
    number = torch.tensor([[*UNEQUAL].index(k) if k in UNEQUAL else 0 for k in range(10)])
    found["cats, dogs, horses, bundled model"] = known[chosen], number[labels[chosen]]
    return found


@torch.inference_mode()
def features(model: Any, images: Images, spec: Any) -> Tensor:
    return torch.cat([model.features(batch["images"]) for batch in split_batches(images, spec)])


def measure(case: Case, count: int, seed: int) -> dict[str, float] | None:
    """Return the predicted and the real gain of a drawn data set; None if a class is too small."""
    known, labels = (part.clone() for part in case)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    mine, twice, others = order[:count], order[: 2 * count], order[2 * count :]
    if labels[mine].bincount(minlength=int(labels.max()) + 1).min() < groups_needed(FOLDS):
        return None
    groups, draws = np.arange(count), [int(row).to_bytes(8, "big") for row in mine]
    parts = spread(groups, labels[mine].tolist(), draws, FOLDS)
    probes = fold_probes(known[mine], labels[mine], parts, int(labels.max()) + 1)
    curve = learning_curve(known[mine], labels[mine], groups, parts, probes)
    gain, (low, high) = extrapolate(curve, groups, count)
    before, after = (accuracy(known, labels, rows, others) for rows in (mine, twice))
    return {"gain": gain, "low": low, "high": high, "truth": after - before}


def accuracy(known: Tensor, labels: Tensor, rows: Tensor, others: Tensor) -> float:
    layer = linear_probe(known[rows], labels[rows], int(labels.max()) + 1).layer
    return float((apply(layer, known[others]).argmax(1) == labels[others]).double().mean())


def false_differences(learner: str, each: int, studies: int) -> float:
    """Return the share of drawn data sets in which two models of equal accuracy differ, at 5 %.

    The data sets and learners are those of ``folds.py``, with so many images of each class.
    """
    random, y = np.random.default_rng(0), np.repeat(np.arange(CLASSES), each)
    wrong = 0
    for _ in range(studies):
        halves = random.normal(0, 1, (2, len(y), FEATURES))
        halves[:, np.arange(len(y)), y] += DISTANCE
        parts = np.concatenate([random.permutation(each) % FOLDS for _ in range(CLASSES)])
        right = np.zeros((2, len(y)))
        for part, half in product(range(FOLDS), range(2)):
            x, asked = halves[half], parts == part
            right[half, asked] = LEARNERS[learner](x[~asked], y[~asked], x[asked]) == y[asked]
        error = error_of(right[1] - right[0], np.arange(len(y)), [1, -1], FOLDS)
        wrong += 2 * error.tail(abs(error.mean)) <= ALPHA
    return wrong / studies


def summary(drawn: list[dict[str, float]]) -> dict[str, float]:
    gains, truths, lows, highs = (
        np.array([row[key] for row in drawn]) for key in ("gain", "truth", "low", "high")
    )
    mean = truths.mean()
    return {
        "draws": len(drawn),
        "real gain": float(mean),
        "predicted gain": float(gains.mean()),
        "width": float((highs - lows).mean()),
        "interval holds": float(((lows <= truths) & (truths <= highs)).mean()),
        "interval holds the mean": float(((lows <= mean) & (mean <= highs)).mean()),
    }


def rounds(found: dict[str, Case], number: int) -> Iterator[dict[str, list[dict[str, float]]]]:
    drawn: dict[str, list[dict[str, float]]] = {}
    for seed in range(number):
        for name, case in found.items():
            for count in COUNTS:
                if row := measure(case, count, FIRST + seed):
                    drawn.setdefault(f"{name}, {count} images", []).append(row)
        yield drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--studies", type=int, default=2000)
    options = parser.parse_args()
    errs = {
        f"{learner}, {CLASSES * each} images": false_differences(learner, each, options.studies)
        for learner, each in product(LEARNERS, (12, 40))
    }
    for drawn in rounds(cases(options.data_dir), options.rounds):
        every = [row for rows in drawn.values() for row in rows]
        results = {name: summary(rows) for name, rows in drawn.items()} | {"all": summary(every)}
        print(results["all"], flush=True)  # noqa: T201
        content = {
            "command": "python -m experiments.statistics.more_pictures",
            "date": date.today().isoformat(),
            "commit": source_commit()[0],
            "results": results,
            "studies": options.studies,
            "false differences": errs,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
