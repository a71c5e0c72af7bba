"""Scores equal results by hand and by scipy."""

import pytest
import torch
from scipy import stats

from vitcli.core.metrics.classification import (
    calibration_error,
    measure_logits,
    score,
    wilson_interval,
)


def test_scores_equal_the_result_by_hand():
    logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2]])
    scores = score(logits, torch.tensor([0, 1, 0, 2]))
    assert scores.accuracy == 0.75
    assert scores.per_class == (0.5, 1.0, 1.0)
    assert scores.confusion == ((1, 1, 0), (0, 1, 0), (0, 0, 1))
    assert scores.balanced_accuracy == pytest.approx((0.5 + 1 + 1) / 3)
    assert scores.precision == (1, 0.5, 1)
    assert (scores.counts, scores.majority) == ((2, 1, 1), (0, 0.5))


@pytest.mark.parametrize("num_classes", [2, 5])
def test_five_or_fewer_classes_have_no_top5_accuracy(num_classes):
    measured = measure_logits(torch.eye(num_classes), torch.arange(num_classes))
    assert "top5_accuracy" not in measured


def test_top5_accuracy_counts_the_five_most_likely_of_six_classes():
    logits = torch.arange(6.0).repeat(4, 1)  # class 0 is the least likely
    assert measure_logits(logits, torch.tensor([0, 1, 2, 5]))["top5_accuracy"] == 0.75


def test_a_class_without_images_has_no_accuracy():
    scores = score(torch.eye(3)[:2], torch.tensor([0, 1]))
    assert scores.per_class == (1.0, 1.0, None)
    assert scores.balanced_accuracy == 1


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (7, 10), (9000, 10_000), (10, 10)])
def test_the_interval_equals_wilson_by_scipy(hits, trials):
    theirs = stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert wilson_interval(hits, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    sure = torch.tensor([[0.9, 0.1]]).log().repeat(10, 1)
    labels = torch.tensor([0] * 6 + [1] * 4)
    assert calibration_error(sure, labels) == pytest.approx(0.3, abs=1e-6)
    labels = torch.tensor([0] * 9 + [1])
    assert calibration_error(sure, labels) == pytest.approx(0.0, abs=1e-6)


def test_balanced_accuracy_and_macro_f1_equal_loops_over_the_classes():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    logits[:, 4] = -9  # never predicted, and no label
    labels = torch.randint(4, (200,), generator=generator) * (torch.arange(200) % 3 > 0)
    found, predicted = measure_logits(logits, labels), logits.argmax(-1)
    recalls, scores = [], []
    for k in range(4):
        hits = ((predicted == k) & (labels == k)).sum().item()
        recall, precision = hits / (labels == k).sum().item(), hits / (predicted == k).sum().item()
        recalls.append(recall)
        scores.append(2 * precision * recall / (precision + recall))
    assert found["balanced_accuracy"] == pytest.approx(sum(recalls) / 4)
    assert found["macro_f1"] == pytest.approx(sum(scores) / 4)
