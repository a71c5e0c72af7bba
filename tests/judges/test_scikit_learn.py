"""Judge: scikit-learn. It decides accuracies, macro-F1, cross-entropy, precision and recall."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.judges.conftest import Judge
from vitcli.core.metrics.classification import measure_logits, score

JUDGE = Judge("scikit-learn", "BSD-3-Clause", "scores of classifications", "sklearn")
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("metric", SCORES)
def test_scores_are_those_of_scikit_learn(agree, name, metric):
    logits, labels = case(name)
    found = score(logits, labels)
    precision = [each or 0.0 for each in found.precision]
    ours = {"precision": precision, "recall": found.per_class, **measure_logits(logits, labels)}

    def theirs() -> Any:
        from sklearn import metrics

        return SCORES[metric](metrics, labels, logits.argmax(1), logits)

    agree(f"{metric}, classes {name}", ours[metric], theirs)
