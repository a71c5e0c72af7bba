"""What a difference means: the rule by hand, the declared margin, and what each output says."""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from datetime import date
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from tests.fabricated_study import make_reference, make_study, make_trial
from tests.runner.study.tables import with_images
from tests.runner.study.trials import ROOT, STUDY, fabricate, write_study
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.slurm import FOLDER as QUEUE
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.study.collect import read_margins, read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.judgement import (
    Effect,
    Withheld,
    compare_with_source,
    judge_difference,
)
from vitcli.runner.study.mean_error import MeanError, pool_seed_variance
from vitcli.runner.study.notes import notes
from vitcli.runner.study.page import html
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.result import Margin, StudyResult
from vitcli.runner.study.run import run_study, save_results, write_plan
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import build, build_details, render

pytestmark = pytest.mark.usefixtures("here")


def evidence(low: float, high: float, p: float | None = None, **fields: Any) -> Any:
    """Return the numbers of a row; without a p, the pooled interval is given, and decides."""
    names = ("pooled_low", "pooled_high") if p is None else ("joint_low", "joint_high")
    is_found = not low <= 0 <= high if p is None else p <= 0.05
    known = dict.fromkeys(("pooled_low", "pooled_high", "equivalent_at"))
    known |= {"joint_low": -99.0, "joint_high": 99.0, "difference": (low + high) / 2, "p_holm": p}
    known |= {"decided_at": 3, "is_higher": low + high > 0} if is_found else {}
    found = SimpleNamespace(**dict.fromkeys(("decided_at", "is_higher")) | known)
    vars(found).update(dict(zip(names, (low, high), strict=True)) | fields)
    return found


@pytest.mark.parametrize(
    ("low", "high", "drop", "same_setting", "direction"),
    [
        (-1, 1, -9, "not replicated", "undecided"),
        (-13.1, -4.2, -8.7, "too wide to say", "same"),
        (-13, -4.4, -8.7, "replicates", "same"),
        (-10, 0, -9, "too wide to say", "undecided"),
        (0, 0, 0, "too wide to say", "undecided"),
        (-8.7, -8, -8.7, "replicates", "same"),
        (8, 10, 8.7, "replicates", "same"),
        (8, 10, -8.7, "opposite", "opposite"),
        (-10, -8, 8.7, "opposite", "opposite"),
        (-5, -3, -8.7, "smaller", "same"),
        (-12, -10, -8.7, "larger", "same"),
        (3, 5, 8.7, "smaller", "same"),
        (1, 3, 0, "larger", "undecided"),
    ],
)
def test_a_difference_beside_that_of_the_source(low, high, drop, same_setting, direction):
    # With too few seeds for a p, the pooled interval decides; with enough, p and the own interval.
    for p in (None, 0.5 if low <= 0 <= high else 0.01):
        row = evidence(low, high, p)
        assert compare_with_source(row, drop, None, same_setting=True) == same_setting
        assert compare_with_source(row, drop, None, same_setting=False) == direction


def test_a_source_is_not_agreed_with_by_an_undecided_difference():
    row = evidence(-10, -8, 0.06)
    assert compare_with_source(row, -9, None, same_setting=False) == "undecided"
    assert compare_with_source(row, -9, None, same_setting=True) == "too wide to say"
    alone = evidence(-10, -8, pooled_low=None, pooled_high=None, decided_at=None)
    assert compare_with_source(alone, -9, None, same_setting=True) == "undecided"
    assert compare_with_source(alone, -9, "diverged", same_setting=True) == "diverged"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (evidence(-3, 1, 0.06), "undecided"),
        (evidence(-3, -1, 0.06), "undecided"),
        (evidence(-3, 1, 0.05), "worse"),
        (evidence(-3, -1, 0.01, equivalent_at=None), "worse"),
        (evidence(-3, -1, 0.01, equivalent_at=8), "worse, within the margin"),
        (evidence(-3, 1, 0.06, equivalent_at=8), "equivalent"),
        (evidence(-3, 1), "undecided"),
        (evidence(-3, -1), "worse"),
        (evidence(-3, -1, equivalent_at=8), "worse, within the margin"),
        (evidence(-3, 1, equivalent_at=8), "equivalent"),
        (evidence(-3, -1, decided_at=None), "undecided"),
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


def test_a_row_that_diverged_is_not_pooled():
    rows = {"base": [0.9, 0.91, 0.92, 0.9], "a": [0.8, 0.8, 0.81, 0.8], "b": [0.8, 0.82, 0.81, 0.8]}
    found = [
        compare(make_study(rows | {"wild": ["diverged", *scores]}))[1].pooled_low
        for scores in ((0.8, 0.8, 0.81), (0.1, 0.5, 0.9))
    ]
    assert found[0] == found[1]


EIGHT = (0.71, 0.72, 0.70, 0.73, 0.71, 0.72, 0.70, 0.73)
THREE = EIGHT[:3]
MARGIN: dict[str, Any] = {"margins": (Margin(points=2.0, date="2026-01-01", num_finished=0),)}
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


def few(points: float, *noise: float, seeds: int = 3, **fields: Any) -> StudyResult:
    """Return a study with too few seeds for a p-value, whose rows share their seed variance."""
    scores = EIGHT[:seeds]
    other = add(scores, -1, 0.2, -0.3, 0.1)
    rows = {"base": scores, X: add(scores, points, *noise), "other": other}
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
OPEN_P = {"base": EIGHT, X: add(EIGHT, 0, *[4] * 7, -0.4), "b": EIGHT, "c": EIGHT, "d": EIGHT}
"""The joint interval excludes 0, and the adjusted p does not."""

STUDIES: dict[str, tuple[StudyResult, Effect]] = {
    "enough seeds": (enough(-8), "worse"),
    "enough seeds, p alone is open": (make_study(OPEN_P, **SOURCE), "undecided"),
    "few seeds": (few(-8), "worse"),
    "few seeds that agree by luck": (make_study(AGREES_BY_LUCK, **SOURCE), "undecided"),
    "few seeds, not all variants": (few(-8, num_comparisons=9), "undecided"),
    "few seeds, vague predictions": (with_images(few(-8), 200), "undecided"),
    "diverged variant": (change(few(-8, seeds=4), X, "diverged", "missing"), "diverged"),
    "both diverged": (change(change(enough(-8), X, "diverged"), "base", "diverged"), "diverged"),
    "diverged baseline": (change(enough(-8), "base", "diverged"), "baseline diverged"),
    "missing trial": (change(few(-8), X, "missing"), "incomplete"),
    "failed baseline": (change(enough(-8), "base", "failed"), "incomplete"),
    "equivalent": (enough(0, -0.1, 0.1, **MARGIN), "equivalent"),
    "few seeds, equivalent": (few(0, -0.1, 0.1, **MARGIN), "equivalent"),
    "worse, within the margin": (enough(-0.5, **MARGIN), "worse, within the margin"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_output_says_the_same_of_a_difference(name):
    doc, expected = STUDIES[name]
    row = compare(doc)[1]
    assert row.effect == expected
    beside = {"better": "same", "worse": "opposite", "undecided": "undecided"}  # the source gains
    if "margin" not in expected and expected != "equivalent":
        assert row.verdict == beside.get(expected, expected)
    table = build(doc)
    if expected != "incomplete":
        headers = [column.header for column in table.columns]
        assert table.rows[1][headers.index("effect")] == expected
        assert f"<td>{expected}</td>" in html(doc, {})
    assert json.loads(render(doc, "json"))["statistics"][1]["effect"] == expected
    assert list(csv.DictReader(io.StringIO(render(doc, "csv"))))[1]["effect"] == expected
    decides = "pooled interval" in [column.header for column in build_details(doc).columns]
    assert decides == any(each.lacks_test and each.pooled_low for each in compare(doc))


TODAY = date.today().isoformat()


def study_with(margin: str) -> Study:
    return write_study(f"{STUDY}\n{margin and f'equivalence_margin: {margin}'}")


def declare(study: Study) -> None:
    plan = plan_study(study, ROOT, (), saved=SavedTrials(SAVED))
    ROOT.mkdir(parents=True, exist_ok=True)
    write_plan(plan, Options())


def margins(study: Study) -> list[tuple[float | None, int]]:
    doc = read_results(study, ROOT, (), SavedTrials(SAVED))
    assert all(each.date == TODAY for each in doc.margins)
    return [(each.points, each.num_finished) for each in doc.margins]


def test_a_margin_keeps_its_day_and_the_trials_that_were_known():
    study = study_with("1.0")
    declare(study)
    fabricate("full", 0)
    declare(study)
    assert margins(study) == [(1.0, 0)]
    changed = study_with("2.0")
    declare(changed)
    fabricate("full", 1)
    assert margins(changed) == [(1.0, 0), (2.0, 1)]
    doc = read_results(changed, ROOT)
    assert notes(doc, compare(doc))["effect"].count(f"declared on {TODAY}") == 2
    withdrawn = study_with("")
    assert margins(withdrawn) == [(1.0, 0), (2.0, 1), (None, 2)]
    assert read_results(withdrawn, ROOT).margin is None


def test_trials_that_are_not_asked_for_count_as_known():
    study_with("1.0")
    for seed in (0, 1):
        fabricate("no-norm", seed)
    study = load_study("mine.yaml", seeds=[0])
    assert read_results(study, ROOT, ["full"]).margins[-1].num_finished == 2
    write_plan(plan_study(study, ROOT, ("full",)), Options())
    assert margins(study) == [(1.0, 2)]


def test_a_later_declaration_is_saved_and_queued_trials_stay_in_the_plan():
    study = study_with("")
    for variant in ("full", "no-norm"):
        fabricate(variant, 0)
    declare(study)
    (ROOT / QUEUE).mkdir(parents=True)
    (ROOT / QUEUE / "full.seed1.json").write_text("{}")
    study_with("1.0")
    one = load_study("mine.yaml", seeds=[0])
    run_study(plan_study(one, ROOT, ()), Options(), print, save=SAVED)
    assert [each.points for each in read_margins(SAVED / "mine")] == [1.0]
    assert "full/seed1" in read_plan(ROOT)["trials"]


def test_trials_with_other_numbers_of_test_images_are_not_compared():
    study = study_with("")
    fabricate("full", 0)
    run = fabricate("no-norm", 0, result={"num_test": 1000})
    logits = np.stack([np.zeros(1000), np.arange(1000) >= 500], 1).astype(np.float32)
    np.savez(run.path / "predictions.npz", logits=logits, labels=np.zeros(1000, np.int64))
    with pytest.raises(InputError, match="1000 and 2000"):
        read_results(study, ROOT)


def test_the_declaration_travels_with_the_saved_trials():
    study = study_with("1.0")
    declare(study)
    fabricate("full", 0)
    save_results(plan_study(study, ROOT, ()), SAVED)
    shutil.rmtree(ROOT)
    declare(study)
    fabricate("full", 1)
    assert margins(study) == [(1.0, 0)]


def test_a_margin_is_a_positive_number():
    with pytest.raises(ConfigError, match="equivalence_margin"):
        study_with("0")
