"""How often does ``vitcli predict`` reject what is none of its classes?

Usage: python -m experiments.gates.rejection [--data-dir DIR] [--fashion-dir DIR]
Two classifiers are asked: the bundled model, which knows ten classes, and ``finetune`` on the
photos of ``own_pictures``, which knows three (three seeds). A tenth of the test images of their
classes give the temperature and the thresholds of the sets. The other test images, and images
without any of the classes, are accepted or rejected. Measured are
  --reject, --coverage     share of the images that these options of ``predict`` accept
  probability, energy      share that these scores accept if they accept 90 % of the known images
Energy is the logarithm of the sum of the exponentiated logits (Liu et al. 2020,
https://arxiv.org/abs/2010.03759). All is written to experiments/results/rejection.json.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.gates.own_pictures import CLASSES, write_pictures
from vitcli.core.data.source import Images, evenly_spaced
from vitcli.core.metrics.classification import accuracy, logits_and_labels
from vitcli.core.metrics.confidence import fit_temperature, set_threshold
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.device import environment
from vitcli.runner.run.folder import find_run
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

RESULT = Path(__file__).parents[1] / "results" / "rejection.json"
OTHERS = ("deer", "frog", "ship")
"""Classes of CIFAR-10 that the fine-tuned classifier does not know."""
SEEDS = (0, 1, 2)
COUNT = 2000
"""Number of images of each kind that is drawn, and of Fashion-MNIST."""
Rule = Callable[[Tensor], Tensor]
"""Logits (N, K) -> a number or whether it is accepted, for each picture (N,)."""
KNOWN = "known classes"
KEPT = 0.9
"""Share of the known images that the scores accept."""


def drawn() -> dict[str, Images]:
    """Return images without any class, by their kind."""
    generator = torch.Generator().manual_seed(0)
    gauss = 127.5 + 64 * torch.randn(COUNT, 3, 32, 32, generator=generator)
    coarse, flat = (255 * torch.rand(COUNT, 3, n, n, generator=generator) for n in (4, 1))
    pixels = {
        "uniform noise": 255 * torch.rand(COUNT, 3, 32, 32, generator=generator),
        "Gaussian noise": gauss,
        "blurred noise": F.interpolate(coarse, 32, mode="bicubic"),
        "one colour": flat.expand(-1, -1, 32, 32),
    }
    labels = torch.zeros(COUNT, dtype=torch.long)
    return {k: Images(v.round().clamp(0, 255).byte(), labels) for k, v in pixels.items()}


def measure(
    known: tuple[Tensor, Tensor], unknown: Mapping[str, Tensor]
) -> dict[str, dict[str, float]]:
    """Return kind of images -> rule -> share accepted; of the known ones, the accuracy, too.

    Args:
        known: Logits (N, K) and labels (N,) of test images.
        unknown: Kind -> logits (M, K) of images without any of the classes.
    """
    logits, labels = known
    fits = torch.arange(len(labels)) % 10 == 0
    temperature = fit_temperature(logits[fits], labels[fits]) or 1.0
    logits, labels, fitting = logits[~fits], labels[~fits], (logits[fits], labels[fits])

    def share(rows: Tensor) -> Tensor:
        return (rows / temperature).softmax(1).amax(1)

    def at_least(score: Rule, least: float) -> Rule:
        return lambda rows: score(rows) >= least

    def has_one_class(least: float) -> Rule:
        return lambda rows: (rows.double().softmax(1) >= least).sum(1) == 1

    rules = {f"--reject {least}": at_least(share, least) for least in (0.8, 0.95)}
    for coverage in (0.9, 0.95):
        rules[f"--coverage {coverage}"] = has_one_class(set_threshold(*fitting, coverage))
    scores: dict[str, Rule] = {"probability": share, "energy": lambda rows: rows.logsumexp(1)}
    for name, score in scores.items():
        rules[name] = at_least(score, score(logits).quantile(1 - KEPT).item())
    found = {
        kind: {name: rule(rows).double().mean().item() for name, rule in rules.items()}
        for kind, rows in {KNOWN: logits, **unknown}.items()
    }
    for name, rule in rules.items():
        kept = rule(logits)
        found[KNOWN][f"accuracy, {name}"] = accuracy(logits[kept], labels[kept])
    return found


def ask(name: str, known: Images, unknown: Mapping[str, Images]) -> dict[str, dict[str, float]]:
    """Return what ``measure`` finds for a run."""
    predictor = Predictor(find_run(name))

    def logits(images: Images) -> tuple[Tensor, Tensor]:
        found = logits_and_labels(predictor.model, images.to(predictor.device), predictor.spec)
        return found[0].cpu(), found[1].cpu()

    return measure(logits(known), {kind: logits(images)[0] for kind, images in unknown.items()})


def tuned(folder: Path, seed: int, unknown: Mapping[str, Images]) -> dict[str, dict[str, float]]:
    """Train ``finetune`` on the photos in ``folder/known``, and ask it."""
    photos = {name: f"imagefolder:{folder / name}" for name in ("known", "others")}
    whole = {"data.val_split": 0, "train.early_stopping": None}
    experiment = load_experiment("finetune", {"data.name": photos["known"], "seed": seed} | whole)
    run = train(experiment, Request(output=folder / f"seed{seed}")).folder
    known, others = (load_data(DataSpec(name=n, resize=(32, 32))).test for n in photos.values())
    return ask(str(run.path), known, {f"classes {', '.join(OTHERS)}": others, **unknown})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--fashion-dir", type=Path, help="folder of Fashion-MNIST")
    options = parser.parse_args()
    cifar10 = load_data(DataSpec(name="cifar10"), data_dir=options.data_dir).test
    fashion = DataSpec(name="fashion-mnist", resize=(32, 32))
    clothes = evenly_spaced(load_data(fashion, data_dir=options.fashion_dir).test, COUNT)
    colored = Images(clothes.pixels.expand(-1, 3, -1, -1), clothes.labels)
    unknown = {"Fashion-MNIST": colored, **drawn()}
    results = {"ten classes": [ask("cifar10-pocket", cifar10, unknown)]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, classes in (("known", CLASSES), ("others", OTHERS)):
            write_pictures(folder / part, options.data_dir, classes)
        results["three classes"] = [tuned(folder, seed, unknown) for seed in SEEDS]
    content: dict[str, Any] = {
        "command": "python -m experiments.gates.rejection",
        "date": date.today().isoformat(),
        "environment": environment(torch.device("cpu")),
        "results": results,
    }
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
