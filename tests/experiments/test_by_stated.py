"""Verdicts on accuracies that a source states, for made results."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.claims.by_results import FROM_RESULTS
from experiments.claims.result_files import Results
from tests.experiments.test_by_studies import Made, study
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import to_json

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


AUGMENTED = "cifar10-small-aug"


def stopped(seed: int, accuracy: float) -> dict[str, Any]:
    """What the claim reads of ``vitcli train cifar10-small-aug --stop-after 10 --json``."""
    chosen = {"train.precision": "bf16"}
    spec = load_experiment(AUGMENTED, chosen | {"seed": seed}).spec
    facts = {"config_hash": config_hash(spec), "hardware": "made GPU", "precision": "bf16"}
    reached = {"seed": seed, "test_accuracy": accuracy, "epochs": 10, "epochs_planned": 300}
    return facts | reached


def saved(folder: Path, *runs: dict[str, Any]) -> Results:
    (folder / f"{AUGMENTED}-10-epochs.json").write_text(json.dumps({"runs": runs}))
    return Results(folder)


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ((0.282, 0.283, 0.284), "in part"),
        ((0.480, 0.481, 0.482), "undecided"),
        ((0.2, 0.283, 0.4), "undecided"),
        ((0.283,), "undecided"),
    ],
)
def test_stopped_trainings_judge_the_first_part_of_the_curve_alone(tmp_path, accuracies, verdict):
    found = FROM_RESULTS["S2-44"](saved(tmp_path, *map(stopped, range(9), accuracies)))
    assert (found.verdict, found.setting) == (verdict, "after 10 of 300 epochs")
    assert found.hardware == "made GPU"
    assert f"n = {len(accuracies)} seed" in found.found
    assert found.found.endswith("epoch 300: not run: the training needs a GPU")


def test_without_a_stopped_training_and_a_study_the_curve_has_no_verdict(tmp_path):
    assert FROM_RESULTS["S2-44"](Results(tmp_path)).verdict == "no verdict"


@pytest.mark.parametrize(("early", "verdict"), [(0.283, "holds"), (0.5, "in part")])
def test_stopped_trainings_and_the_study_judge_one_part_each(tmp_path, early, verdict):
    doc = study("classification-cifar10", 94.0, vit_small_aug=93.1)
    base, row, _ = doc.rows
    curves = [((200, 0.9), (300, 0.931 + seed / 1000)) for seed in range(3)]
    trials = [trial.replace(curve=c) for trial, c in zip(row.trials, curves, strict=True)]
    doc = doc.replace(rows=(base, row.replace(trials=trials)))
    (tmp_path / "classification-cifar10.json").write_text(to_json(doc))
    runs = [stopped(seed, early + seed / 1000) for seed in range(3)]
    found = FROM_RESULTS["S2-44"](saved(tmp_path, *runs))
    assert found.verdict == verdict
    assert found.hardware.endswith("; made GPU")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"epochs": 9}, "seed 1 is not cifar10-small-aug"),
        ({"epochs_planned": 10}, "stopped after 10 of 300 epochs"),
        ({"config_hash": "0" * 64}, "unchanged"),
        ({"precision": "fp32"}, "unchanged"),
        ({"seed": 0, "config_hash": stopped(0, 0.3)["config_hash"]}, "twice"),
        ({"test_accuracy": 28.3}, "damaged"),
        ({"test_accuracy": None}, "damaged"),
        ({"seed": "1"}, "damaged"),
        ({"hardware": 5}, "damaged"),
    ],
)
def test_a_file_of_other_trainings_is_refused(tmp_path, other, told):
    results = saved(tmp_path, stopped(0, 0.283), stopped(1, 0.283) | other)
    with pytest.raises(InputError, match=told):
        FROM_RESULTS["S2-44"](results)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": []}', '{"runs": [1]}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / f"{AUGMENTED}-10-epochs.json").write_text(text)
    with pytest.raises(InputError, match="damaged"):
        FROM_RESULTS["S2-44"](Results(tmp_path))
