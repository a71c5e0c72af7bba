"""Verdicts on accuracies that a source states, for made results."""

import pytest

from tests.runner.claims.test_by_studies import Made, study
from vitcli.runner.claims.by_results import FROM_RESULTS
from vitcli.runner.study.result import StudyResult

CURVE = ((10, 0.283), (300, 0.931))


@pytest.mark.parametrize(
    ("spread", "shift", "verdict"),
    [(0.1, 0.0, "holds"), (0.1, 5.0, "refuted"), (9.0, 0.0, "undecided"), (0.1, 1.0, "undecided")],
)
def test_about_an_accuracy_means_within_a_point(spread, shift, verdict):
    doc = study("cifar10-tiny", 71.51 + shift)
    trials = [
        trial.replace(test_accuracy=(71.51 + shift + (i - 1) * spread) / 100)
        for i, trial in enumerate(doc.rows[0].trials)
    ]
    doc = doc.replace(rows=(doc.rows[0].replace(trials=trials),))
    assert FROM_RESULTS["S0-22"](Made(doc)).verdict == verdict
    again = Made(study("cifar10-tiny", 0.0), doc.replace(name="ablation-epochs"))
    assert FROM_RESULTS["S0-22"](again).verdict == verdict, "the study of epochs comes first"


@pytest.mark.parametrize(
    ("score", "verdict"), [(75.0, "holds"), (70.0, "refuted"), (72.1, "undecided")]
)
def test_more_epochs_help_if_100_are_above_50(score, verdict):
    doc = study("ablation-epochs", 72.0, **{"100_epochs": score})
    assert FROM_RESULTS["S0-23"](Made(doc)).verdict == verdict


def classified(vit_small: float = 91.8, resnet: float = 94.2) -> StudyResult:
    return study("classification-cifar10", 90.0, resnet_18=resnet, vit_small=vit_small)


@pytest.mark.parametrize(
    ("claim", "scores", "verdict"),
    [
        ("S2-37", {}, "holds"),
        ("S2-37", {"resnet": 92.0}, "in part"),
        ("S2-37", {"resnet": 95.0}, "in part"),
        ("S2-38", {}, "in part"),
        ("S2-38", {"vit_small": 88.0}, "refuted"),
        ("S2-38", {"vit_small": 92.8}, "undecided"),
        ("S2-39", {}, "no verdict"),
    ],
)
def test_a_row_of_the_classification_table_is_judged_by_size_and_accuracy(claim, scores, verdict):
    found = FROM_RESULTS[claim](Made(classified(**scores)))
    assert found.verdict == verdict
    assert "parameters, " in found.found
    assert ("fewer than 3" in found.found) is False


def test_one_seed_of_a_row_is_no_verdict_on_its_accuracy():
    doc = classified()
    rows = [row.replace(trials=row.trials[:1]) for row in doc.rows]
    found = FROM_RESULTS["S2-38"](Made(doc.replace(rows=tuple(rows))))
    assert found.verdict == "undecided"
    assert "against 91.8 %; fewer than 3 seeds give no interval" in found.found


@pytest.mark.parametrize(
    ("curve", "verdict"),
    [
        (CURVE, "holds"),
        (((10, 0.50), (300, 0.931)), "in part"),
        (((10, 0.50), (300, 0.95)), "refuted"),
        (((10, 0.283), (200, 0.931)), "in part"),
        (((200, 0.931),), "undecided"),
    ],
)
def test_the_curve_of_the_report_is_judged_at_its_first_and_last_epoch(curve, verdict):
    doc = study("classification-cifar10", 94.0, vit_small_aug=93.1)
    base, row, _ = doc.rows
    trials = [
        trial.replace(curve=tuple((epoch, score + trial.seed / 1000) for epoch, score in curve))
        for trial in row.trials
    ]
    found = FROM_RESULTS["S2-44"](Made(doc.replace(rows=(base, row.replace(trials=trials)))))
    assert found.verdict == verdict
    assert found.found.startswith("epoch 10: ")
