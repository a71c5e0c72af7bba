"""Scores of a classification by scikit-learn: `python judge.py > scores.json`."""

import json
import sys
from typing import Any

import numpy as np

CASES = {"unequal": (0.7, 0.2, 0.06, 0.04), "no prediction of one": (0.5, 0.3, 0.2)}
"""Name -> the shares of the classes."""


def case(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return logits (400, K) and labels (400,); the last class of one case is never predicted."""
    generator, shares = np.random.default_rng(len(name)), CASES[name]
    labels = generator.choice(len(shares), 400, p=shares)
    logits = generator.normal(size=(400, len(shares))) + 1.5 * np.eye(len(shares))[labels]
    logits[:, -1] -= 20 * name.startswith("no")
    return logits, labels


def judge() -> dict[str, dict[str, Any]]:
    """Return the scores of each case."""
    from sklearn import metrics  # type: ignore[import-not-found]

    found = {}
    for name in CASES:
        logits, labels = case(name)
        guess, shares = logits.argmax(1), np.exp(logits)
        rows = metrics.precision_recall_fscore_support(labels, guess, zero_division=0)
        found[name] = {
            "accuracy": metrics.accuracy_score(labels, guess),
            "balanced_accuracy": metrics.balanced_accuracy_score(labels, guess),
            "macro_f1": metrics.f1_score(labels, guess, average="macro", zero_division=0),
            "loss": metrics.log_loss(labels, shares / shares.sum(1, keepdims=True)),
            "precision": rows[0].tolist(),
            "recall": rows[1].tolist(),
        }
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(judge(), indent=1) + "\n")
