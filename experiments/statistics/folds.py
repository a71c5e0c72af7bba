"""Measure how often a study over folds finds a difference although there is none.

Two classifiers see two halves of the features of each drawn data set. The halves are independent
and have the same distribution, so the classifiers have the same expected accuracy, whatever they
are. Each data set is divided as `data.folds` does. Measured is the share of data sets in which the
difference of the two has p <= 0.05,
  corrected     by the variance of Nadeau and Bengio, as a study over folds computes it
  uncorrected   by the variance of independent seeds
By default all is written to experiments/results/statistics/folds.json.
"""

import argparse
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcli.runner.machine.device import source_commit
from vitcli.runner.study.significance import ALPHA, MeanError

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "folds.json"
CLASSES, EACH, FEATURES = 3, 40, 8
"""Numbers of classes, of images of each class, and of features that a classifier sees."""
DISTANCE = 1.2
"""Of the mean of a class from the origin, in standard deviations."""
RIDGE = 10.0
Table = NDArray[np.float64]
Labels = NDArray[np.int64]


def nearest_mean(x: Table, y: Labels, asked: Table) -> Labels:
    """Return the class with the nearest mean for each row of ``asked``."""
    means = np.stack([x[y == label].mean(0) for label in range(CLASSES)])
    return (2 * asked @ means.T - (means**2).sum(1)).argmax(1)


def ridge(x: Table, y: Labels, asked: Table) -> Labels:
    """Return the class with the largest output of a ridge regression on the classes."""
    x, asked = (np.pad(part, ((0, 0), (0, 1)), constant_values=1) for part in (x, asked))
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ np.eye(CLASSES)[y])
    return (asked @ weights).argmax(1)


LEARNERS: dict[str, Callable[[Table, Labels, Table], Labels]] = {
    "nearest mean": nearest_mean,
    "ridge regression": ridge,
}
CASES = {
    f"{name}, {folds} folds {times}": (name, folds, repeats)
    for name in LEARNERS
    for folds, times, repeats in ((5, "once", 1), (5, "twice", 2), (5, "ten times", 10))
}


def differences(learner: str, folds: int, repeats: int, random: np.random.Generator) -> list[float]:
    """Return the difference in percentage points in each fold of a drawn data set."""
    y = np.repeat(np.arange(CLASSES), EACH)
    halves = random.normal(0, 1, (2, len(y), FEATURES))
    halves[:, np.arange(len(y)), y] += DISTANCE
    found = []
    for _ in range(repeats):
        parts = np.concatenate([random.permutation(EACH) % folds for _ in range(CLASSES)])
        for part in range(folds):
            is_test = parts == part
            scores = [
                (LEARNERS[learner](x[~is_test], y[~is_test], x[is_test]) == y[is_test]).mean()
                for x in halves
            ]
            found.append(100 * float(scores[1] - scores[0]))
    return found


def measure(case: str, studies: int) -> dict[str, float]:
    """Return the shares of one case."""
    learner, folds, repeats = CASES[case]
    random = np.random.default_rng(0)
    drawn = [differences(learner, folds, repeats, random) for _ in range(studies)]
    shares = {}
    for name, count in (("corrected", folds), ("uncorrected", None)):
        errors = [MeanError.of_seeds(each, folds=count) for each in drawn]
        shares[name] = float(np.mean([2 * e.tail(abs(e.mean)) <= ALPHA for e in errors]))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--studies", type=int, default=4000)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for case in CASES:
        results[case] = measure(case, options.studies)
        print(case, results[case], flush=True)  # noqa: T201
    content = {
        "command": "python -m experiments.statistics.folds",
        "date": date.today().isoformat(),
        "commit": source_commit()[0],
        "studies": options.studies,
        "results": results,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
