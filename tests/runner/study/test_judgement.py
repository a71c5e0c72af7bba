"""What a difference means: the rule by hand, the declared margin, and what each output says."""

import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from tests.fabricated_study import make_reference, make_study, make_trial
from tests.runner.study.tables import cell, with_images
from tests.runner.study.trials import ROOT, STUDY, write_study
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.judgement import (
    Effect,
    RowStatistics,
    Withheld,
    compare_with_source,
    judge_difference,
)
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import MeanError, pool_seed_variance
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

pytestmark = pytest.mark.usefixtures("here")


def evidence(low: float, high: float, p: float | None = None, **fields: Any) -> RowStatistics:
    """Return a row; without a p, the pooled interval is given, and decides."""
    is_found = not low <= 0 <= high if p is None else p <= 0.05
    names = ("pooled_low", "pooled_high") if p is None else ("joint_low", "joint_high")
    known: dict[str, Any] = {"joint_low": -99.0, "joint_high": 99.0, "p_holm": p}
    known |= dict.fromkeys(("score_mean", "score_sd", "seconds_mean", "seconds_total"))
    known |= {"difference": (low + high) / 2, "effect": "undecided"}
    known |= {"decided_at": 3, "is_higher": low + high > 0} if is_found else {}
    known |= dict(zip(names, (low, high), strict=True)) | fields
    return RowStatistics(variant="x", n=3, num_diverged=0, num_unfinished=0, **known)


@pytest.mark.parametrize(
    ("low", "high", "drop", "same_setting", "other_setting"),
    [
        (-1, 1, -9, "differs", "open"),
        (-13.1, -4.2, -8.7, "open", "agrees"),
        (-13, -4.4, -8.7, "agrees", "agrees"),
        (-10, 0, -9, "open", "open"),
        (-8.7, -8, -8.7, "agrees", "agrees"),
        (8, 10, -8.7, "differs", "differs"),
        (-5, -3, -8.7, "differs", "agrees"),
        (-12, -10, -8.7, "differs", "agrees"),
        (1, 3, 0, "differs", "open"),
    ],
)
def test_a_difference_beside_that_of_the_source(low, high, drop, same_setting, other_setting):
    # With too few seeds for a p, the pooled interval decides; with enough, p and the own interval.
    for p in (None, 0.5 if low <= 0 <= high else 0.01):
        row = evidence(low, high, p)
        assert compare_with_source(row, drop, same_setting=True) == same_setting
        assert compare_with_source(row, drop, same_setting=False) == other_setting


def test_a_withheld_difference_is_open_beside_a_source():
    for row in (evidence(-10, -8, 0.01, effect="diverged"), evidence(-10, -8, 0.01, effect=None)):
        for same_setting in (True, False):
            assert compare_with_source(row, -9, same_setting=same_setting) == "open"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (evidence(-3, 1, 0.06), "undecided"),
        (evidence(-3, -1, 0.06), "undecided"),
        (evidence(-3, 1, 0.05), "worse"),
        (evidence(-3, -1, 0.01, equivalent_at=8), "worse, within the margin"),
        (evidence(-3, 1, 0.06, equivalent_at=8), "equivalent"),
        (evidence(-3, -1), "worse"),
        (evidence(-3, -1, joint_low=None), None),
    ],
)
def test_the_effect_of_a_row(row, expected):
    assert judge_difference(row, None, higher_is_better=True) == expected
    turned = judge_difference(row, None, higher_is_better=False)
    assert turned == (expected and expected.replace("worse", "better"))
    for without in get_args(Withheld):
        assert judge_difference(row, without, higher_is_better=True) == without


def test_pooled_seeds_by_hand():
    # Variances 1 and 9, each of three numbers: mean 5; 2 rows count for 2 / 1.25 independent ones.
    pool = pool_seed_variance([[1, 2, 3], [0, 3, 6], [1, 2]])
    assert (pool.value, pool.freedom) == (5.0, pytest.approx(4 / 1.25))
    quiet, noisy = (MeanError.of_seeds(row, pool) for row in ([1, 2, 3], [0, 3, 6]))
    assert (quiet.variance, quiet.seed_freedom) == (pytest.approx(5 / 3), pool.freedom)
    # The row that varies more keeps its own variance and degrees of freedom.
    assert (noisy.variance, noisy.seed_freedom) == (pytest.approx(9 / 3), 2)
    assert pool_seed_variance([[1, 2, 3], [1, 2]]) is None


EIGHT = (0.71, 0.72, 0.70, 0.73, 0.71, 0.72, 0.70, 0.73)
THREE = EIGHT[:3]
MARGIN: dict[str, Any] = {"margin": 2.0}
X = "less"
"""The judged variant."""
SOURCE = {"reference": make_reference({"base": 71.0, X: 80.0})}


def add(scores: Sequence[float], points: float, *noise: float) -> list[float | str]:
    """Return scores moved by ``points``, and by each of ``noise`` in turn."""
    extra = noise or (0.0, 0.1)
    return [s + (points + extra[i % len(extra)]) / 100 for i, s in enumerate(scores)]


def enough(points: float, *noise: float, **fields: Any) -> StudyResult:
    """Return a study with the seeds for a p-value."""
    return make_study({"base": EIGHT, X: add(EIGHT, points, *noise)}, **(SOURCE | fields))


def few(points: float, *noise: float, **fields: Any) -> StudyResult:
    """Return a study with too few seeds for a p-value, whose rows share their seed variance."""
    other = add(THREE, -1, 0.2, -0.3, 0.1)
    rows = {"base": THREE, X: add(THREE, points, *noise), "other": other}
    return make_study(rows, **(SOURCE | fields))


def change(doc: StudyResult, variant: str, *states: str) -> StudyResult:
    """Return a study whose first trials of a row have these states."""
    rows = []
    for row in doc.rows:
        trials = list(row.trials)
        if row.variant == variant:
            trials[: len(states)] = [make_trial(seed, state) for seed, state in enumerate(states)]
        rows.append(row.replace(trials=tuple(trials)))
    return doc.replace(rows=tuple(rows))


AGREES_BY_LUCK = {"base": THREE, X: add(THREE, 1), "other": add(THREE, -9, 2.0, -2.0, 0.0)}
STUDIES: dict[str, tuple[StudyResult, Effect]] = {
    "enough seeds": (enough(-8), "worse"),
    "few seeds": (few(-8), "worse"),
    "few seeds that agree by luck": (make_study(AGREES_BY_LUCK, **SOURCE), "undecided"),
    "few seeds, vague predictions": (with_images(few(-8), 200), "undecided"),
    "diverged variant": (change(few(-8), X, "diverged", "missing"), "diverged"),
    "diverged baseline": (change(enough(-8), "base", "diverged"), "baseline diverged"),
    "missing trial": (change(few(-8), X, "missing"), "incomplete"),
    "failed baseline": (change(enough(-8), "base", "failed"), "incomplete"),
    "few seeds, equivalent": (few(0, -0.1, 0.1, **MARGIN), "equivalent"),
    "worse, within the margin": (enough(-0.5, **MARGIN), "worse, within the margin"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_the_effect_of_a_study(name):
    doc, expected = STUDIES[name]
    row = compare(doc)[1]
    assert row.effect == expected
    if "margin" not in expected:
        assert row.verdict == {"worse": "differs"}.get(expected, "open"), "the source gains"
    if expected != "incomplete":
        assert cell(doc, X, "effect") == expected


def test_the_margin_is_that_of_the_file_and_the_last_one_of_an_older_document():
    study = write_study(f"{STUDY}\nequivalence_margin: 1.0")
    doc = read_results(study, ROOT)
    assert doc.margin == 1.0
    stored = doc.model_dump(mode="json")
    del stored["margin"]
    stored["margins"] = [
        {"points": points, "date": "2026-01-01", "num_finished": 3} for points in (2.0, 1.0)
    ]
    assert read_document(json.dumps(stored)) == doc
    with pytest.raises(ConfigError, match="equivalence_margin"):
        write_study(f"{STUDY}\nequivalence_margin: 0")


def test_a_row_that_diverged_is_not_pooled():
    rows = {"base": [0.9, 0.91, 0.92, 0.9], "a": [0.8, 0.8, 0.81, 0.8], "b": [0.8, 0.82, 0.81, 0.8]}
    found = [
        compare(make_study(rows | {"wild": ["diverged", *scores]}))[1].pooled_low
        for scores in ((0.8, 0.8, 0.81), (0.1, 0.5, 0.9))
    ]
    assert found[0] == found[1]
