"""Judge: torchmetrics. It decides calibration, scores, also of several labels, and R2."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.judges.conftest import Judge
from tests.judges.test_scikit_learn import (
    CASES,
    THRESHOLD,
    case,
    guesses,
    label_sets,
    scores_of_sets,
)
from vitcli.core.metrics.classification import confusion_matrix, measure_logits

JUDGE = Judge("torchmetrics", "Apache-2.0", "calibration and confusion", "torchmetrics")
pytestmark = pytest.mark.judge
SCORES: dict[str, Callable[..., Any]] = {
    "accuracy": lambda m, logits, labels, k: m.multiclass_accuracy(
        logits, labels, k, average="micro"
    ),
    "macro_f1": lambda m, logits, labels, k: m.multiclass_f1_score(logits, labels, k),
    "calibration_error": lambda m, logits, labels, k: m.multiclass_calibration_error(
        logits, labels, k, n_bins=15
    ),
    "confusion": lambda m, logits, labels, k: m.multiclass_confusion_matrix(logits, labels, k),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("metric", SCORES)
def test_scores_are_those_of_torchmetrics(agree, name, metric):
    logits, labels = case(name)
    ours = {"confusion": confusion_matrix(logits, labels), **measure_logits(logits, labels)}

    def theirs() -> Any:
        from torchmetrics.functional import classification

        return SCORES[metric](classification, logits, labels, logits.shape[1])

    agree(f"{metric}, classes {name}", ours[metric], theirs)


SETS: dict[str, Callable[..., Any]] = {
    "mean_average_precision": lambda m, shares, is_right: m.multilabel_average_precision(
        shares[:, :-1], is_right[:, :-1], 4, average="macro"
    ),
    "micro_f1": lambda m, shares, is_right: m.multilabel_f1_score(
        shares, is_right, 5, threshold=THRESHOLD - 1e-9, average="micro"
    ),
    "macro_f1": lambda m, shares, is_right: m.multilabel_f1_score(
        shares[:, :-1], is_right[:, :-1], 4, threshold=THRESHOLD - 1e-9, average="macro"
    ),
}
NUMBERS: dict[str, Callable[..., Any]] = {
    "absolute_error": lambda m, guess, targets: m.mean_absolute_error(guess, targets),
    "rmse": lambda m, guess, targets: m.mean_squared_error(guess, targets, squared=False),
    "r2": lambda m, guess, targets: m.r2_score(guess, targets),
}


@pytest.mark.plugin("targets")
@pytest.mark.parametrize("metric", SETS)
def test_scores_of_several_labels_are_those_of_torchmetrics(agree, metric):
    shares, is_right = label_sets(10**6)

    def theirs() -> Any:
        from torchmetrics.functional import classification

        return SETS[metric](classification, shares, is_right.long())

    agree(f"{metric}, several labels", scores_of_sets(shares, is_right)[metric], theirs, 1e-6)


@pytest.mark.plugin("targets")
@pytest.mark.parametrize("metric", NUMBERS)
def test_errors_of_numbers_are_those_of_torchmetrics(agree, metric):
    from vitcli.plugins.targets.measures import measure_errors

    predictions, targets = guesses()

    def theirs() -> Any:
        from torchmetrics.functional import regression

        return NUMBERS[metric](regression, predictions, targets)

    agree(f"{metric} of numbers", measure_errors(predictions, targets)[metric], theirs, 1e-6)
