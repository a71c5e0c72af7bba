"""Judge: scikit-learn. It decides scores of classifications, also of several labels, and R2."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.judges.conftest import Judge
from vitcli.core.metrics.classification import measure_logits, score

JUDGE = Judge("scikit-learn", "BSD-3-Clause", "scores of classifications and numbers", "sklearn")
CASES = {"unequal": (0.7, 0.2, 0.06, 0.04), "no prediction of one": (0.5, 0.3, 0.2)}
SCORES: dict[str, Callable[..., Any]] = {
    "accuracy": lambda m, labels, guess, _: m.accuracy_score(labels, guess),
    "balanced_accuracy": lambda m, labels, guess, _: m.balanced_accuracy_score(labels, guess),
    "macro_f1": lambda m, labels, guess, _: m.f1_score(
        labels, guess, average="macro", zero_division=0
    ),
    "loss": lambda m, labels, _, logits: m.log_loss(labels, logits.softmax(1)),
    "precision": lambda m, labels, guess, _: m.precision_score(
        labels, guess, average=None, zero_division=0
    ),
    "recall": lambda m, labels, guess, _: m.recall_score(labels, guess, average=None),
}


def case(name: str) -> tuple[Tensor, Tensor]:
    """Return logits (400, K) and labels (400,); the last class of one case is never predicted."""
    generator, shares = np.random.default_rng(len(name)), CASES[name]
    labels = generator.choice(len(shares), 400, p=shares)
    logits = generator.normal(size=(400, len(shares))) + 1.5 * np.eye(len(shares))[labels]
    logits[:, -1] -= 20 * name.startswith("no")
    return torch.from_numpy(logits), torch.from_numpy(labels)


def says(score: Callable[..., Any], *given: Any) -> Any:
    from sklearn import metrics

    return score(metrics, *given)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("metric", SCORES)
def test_scores_are_those_of_scikit_learn(agree, name, metric):
    logits, labels = case(name)
    found = score(logits, labels)
    precision = [each or 0.0 for each in found.precision]
    ours = {"precision": precision, "recall": found.per_class, **measure_logits(logits, labels)}
    theirs = partial(says, SCORES[metric], labels, logits.argmax(1), logits)
    agree(f"{metric}, classes {name}", ours[metric], theirs)


THRESHOLD = 0.4
SETS: dict[str, Callable[..., Any]] = {
    "mean_average_precision": lambda m, is_right, shares: m.average_precision_score(
        is_right[:, is_right.any(0)], shares[:, is_right.any(0)], average="macro"
    ),
    "micro_f1": lambda m, is_right, shares: m.f1_score(
        is_right, shares >= THRESHOLD, average="micro"
    ),
    "macro_f1": lambda m, is_right, shares: m.f1_score(
        is_right[:, is_right.any(0)], (shares >= THRESHOLD)[:, is_right.any(0)], average="macro"
    ),
}
NUMBERS: dict[str, Callable[..., Any]] = {
    "absolute_error": lambda m, targets, guess: m.mean_absolute_error(targets, guess),
    "rmse": lambda m, targets, guess: m.root_mean_squared_error(targets, guess),
    "r2": lambda m, targets, guess: m.r2_score(targets, guess),
}


def label_sets(levels: int) -> tuple[Tensor, Tensor]:
    """Return probabilities (300, 5) of so many levels, and labels; no image has the last class.

    It has no accepted probability either, so that it does not count for macro-F1.
    """
    generator = np.random.default_rng(levels)
    is_right = generator.random((300, 5)) < (0.05, 0.2, 0.5, 0.9, 0.0)
    shares = (generator.random((300, 5)) + 0.6 * is_right) / 1.6
    shares[:, -1] *= 0.2
    return torch.from_numpy(np.round(shares * levels) / levels), torch.from_numpy(is_right)


def guesses() -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(0)
    targets = generator.normal(40, 12, 300)
    return torch.from_numpy(targets + generator.normal(1, 6, 300)), torch.from_numpy(targets)


def scores_of_sets(shares: Tensor, is_right: Tensor) -> dict[str, float]:
    from vitcli.plugins.targets.measures import f1_scores, mean_average_precision

    micro, macro = f1_scores(shares >= THRESHOLD, is_right)
    average = mean_average_precision(shares, is_right)
    return {"mean_average_precision": average, "micro_f1": micro, "macro_f1": macro}


@pytest.mark.plugin("targets")
@pytest.mark.parametrize("levels", [8, 10**6])
@pytest.mark.parametrize("metric", SETS)
def test_scores_of_several_labels_are_those_of_scikit_learn(agree, metric, levels):
    shares, is_right = label_sets(levels)
    theirs = partial(says, SETS[metric], is_right.numpy(), shares.numpy())
    ours = scores_of_sets(shares, is_right)[metric]
    agree(f"{metric}, several labels, {levels} levels", ours, theirs, 1e-6)


@pytest.mark.plugin("targets")
@pytest.mark.parametrize("metric", NUMBERS)
def test_errors_of_numbers_are_those_of_scikit_learn(agree, metric):
    from vitcli.plugins.targets.measures import measure_errors

    predictions, targets = guesses()
    theirs = partial(says, NUMBERS[metric], targets.numpy(), predictions.numpy())
    agree(f"{metric} of numbers", measure_errors(predictions, targets)[metric], theirs, 1e-6)
