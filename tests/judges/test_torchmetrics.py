"""Judge: torchmetrics. It decides calibration and confusion; scikit-learn decides scores."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.judges.conftest import Judge
from tests.judges.test_scikit_learn import CASES, case
from vitcli.core.metrics.classification import confusion_matrix, measure_logits

JUDGE = Judge("torchmetrics", "Apache-2.0", "calibration and confusion", "torchmetrics")
pytestmark = pytest.mark.judge
SCORES: dict[str, Callable[..., Any]] = {
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
