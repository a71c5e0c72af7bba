"""The statistics of a study and what a difference means: by hand, with scipy, by a count."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from tests.fabricated_study import cell, make_reference, make_study, make_trial, studies
from tests.runner.study.trials import ROOT, STUDY, fabricate, write_study
from vitcli.core.metric import ACCURACY
from vitcli.core.spec.task import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import State
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.images import ImageScores, contrast, cross, join
from vitcli.runner.study.judgement import Effect, Withheld, compare_with_source, judge_difference
from vitcli.runner.study.looks import level
from vitcli.runner.study.notes import notes
from vitcli.runner.study.result import Plan, StudyResult
from vitcli.runner.study.significance import (
    MeanError,
    holm,
    planned_error,
    pool_seed_variance,
    probability_below,
    sign_flip_p,
)
from vitcli.runner.study.statistics import RowStatistics, compare, scores
from vitcli.runner.study.table import read_document


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_rounding_noise_breaks_no_tie_and_more_than_16_pairs_are_drawn_with_a_fixed_seed():
    # Their sum is 0, but not in floats: some of the flips that also give 0 would seem smaller.
    assert sign_flip_p([-0.2, -0.15, 0.2, 0.1, 0.0, -0.15, 0.2]) == 1.0
    assert sign_flip_p([0.0] * 8) == 1.0
    differences = [1.0, -0.9] * 8 + [1.5]
    signs = np.array(list(itertools.product((-1, 1), repeat=17)))
    means = np.round((signs * np.array(differences)).mean(axis=1), 9)
    exact = np.mean(np.abs(means) >= round(np.mean(differences), 9))
    drawn = sign_flip_p(differences)
    assert drawn == sign_flip_p(differences)
    assert drawn == pytest.approx(exact, abs=0.01)
    assert drawn != exact


def test_holm_by_hand():
    # Sorted: 0.01 * 5 = 0.05, 0.03 * 4 = 0.12, 0.04 * 3 = 0.12; the missing two are last.
    assert holm([0.01, 0.04, None, 0.03], 5) == [close(0.05), close(0.12), None, close(0.12)]
    # 0.021 * 1 is below 0.02 * 2 and is lifted to it: a larger p stays the larger.
    assert holm([0.021, 0.02], 2) == [0.04, 0.04]
    assert holm([0.5, 0.4], 3) == [1.0, 1.0]
    assert holm([None], 1) == [None]


@pytest.mark.parametrize(
    ("seeds", "images", "level"), [(8, 0.0, 0.0438), (3, 0.0, 0.009), (8, 0.35, 0.0087)]
)
def test_a_t_test_finds_the_detectable_difference_with_its_power(seeds, images, level):
    variance = 1 / seeds + images**2
    share, freedom = 1 / seeds / variance, seeds - 1
    error = MeanError(mean=0.0, variance=variance, seed_share=share, seed_freedom=freedom)
    random = np.random.default_rng(1)
    size, draws = error.detectable(level), 40_000
    means = size + random.normal(0, 1 / seeds**0.5, draws) + random.normal(0, images, draws)
    variances = random.chisquare(seeds - 1, draws) / (seeds - 1) / seeds
    p = level / 2
    t, z = stats.t.isf(p, seeds - 1), stats.norm.isf(p)
    total = variances + images**2
    limits = (variances * t + images**2 * z) / total**0.5
    assert np.mean(means > limits) == pytest.approx(0.8, abs=0.02)
    planned = planned_error(8, 1, None, has_test=True)
    # d of a paired t test with n = 8, alpha 0.05, power 0.8 (G*Power: 1.1557)
    assert planned.detectable(0.05) == pytest.approx(1.1557, abs=1e-3)


@pytest.mark.parametrize(("m", "folds", "expected"), [(1, None, None), (5, None, 5.0), (1, 5, 2.0)])
def test_the_planned_error_is_that_of_the_interval_that_decides(m, folds, expected):
    found = planned_error(3, m, folds, has_test=folds is not None)
    assert (found and found.seed_freedom) == expected
    assert not folds or found.variance == pytest.approx(1 / 3 + 1 / 4)


@pytest.mark.parametrize("below", [0, 3, 8])
def test_the_interval_of_a_probability_is_scipys(below):
    found = probability_below([0] * below + [2] * (8 - below), [1] * 8)
    exact = stats.binomtest(below, 8).proportion_ci(0.95, "exact")
    assert found == (below / 8, (close(exact.low), close(exact.high)))


def test_with_one_source_of_chance_it_is_the_t_interval():
    values = np.array([1.0, 2.0, 4.0, 5.5])
    only_seeds = np.repeat(values[:, None], 50, axis=1)
    t = stats.ttest_1samp(values, 0).confidence_interval()
    assert cross(only_seeds).interval(0.05) == pytest.approx((t.low, t.high))
    only_images = np.repeat(np.random.default_rng(0).normal(0, 2, (1, 300)), 4, axis=0)
    t = stats.ttest_1samp(only_images[0], 0).confidence_interval()
    assert cross(only_images).interval(0.05) == pytest.approx((t.low, t.high))


def test_predictions_that_do_not_fit_together_give_no_scores():
    good, labels = np.array([1.0, 0.0]), np.array([1, 1])
    known = join({0: PerImage(good, labels), 1: PerImage(good, labels)}, ACCURACY)
    assert [[*scores] for scores in known.by_seed.values()] == [[100, 0], [100, 0]]
    for other in (PerImage(good, labels + 1), PerImage(good[:1], labels[:1]), None):
        assert join({0: PerImage(good, labels), 1: other}, ACCURACY).by_seed == {}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_contrast_names_the_lost_images_and_the_classes(sign):
    labels = np.array([0, 0, 1, 1])
    headline = dataclasses.replace(ACCURACY, higher_is_better=sign > 0)
    worst = 0 if sign > 0 else 100
    rows = np.array([[[100.0, 100, 100, 0]] * 2, [[0.0, 100, 0, 100], [0, 0, 0, 100]]])
    base, ours = (ImageScores(dict(enumerate(by_seed)), labels) for by_seed in abs(worst - rows))
    found = contrast(ours, base, headline)
    assert (found.only_baseline, found.only_variant) == (2, 1)
    assert found.examples == (0, 2, 1)
    assert found.by_class == (-75.0 * sign, 0)
    assert found.crossed.mean == -37.5 * sign
    assert contrast(ours, ImageScores(base.by_seed, labels[::-1]), ACCURACY) is None
    assert contrast(ImageScores({0: ours.by_seed[0]}, labels), base, ACCURACY) is None


def with_images(doc: StudyResult, noise: float) -> StudyResult:
    """Return the study with predictions, whose differences vary by ``noise`` over 400 images."""
    random, rows = np.random.default_rng(0), []
    for row, found in zip(doc.rows[1:], compare(doc)[1:], strict=True):
        pairs = zip(row.trials, doc.rows[0].trials, strict=True)
        points = [100 * (a.test_score - b.test_score) for a, b in pairs]
        shape = random.normal(0, noise, 400)
        shape -= shape.mean()
        scores = ImageScores({seed: point + shape for seed, point in enumerate(points)})
        zero = ImageScores({seed: 0 * each for seed, each in scores.by_seed.items()})
        made = contrast(scores, zero, doc.headline)
        assert made is not None
        assert made.crossed.mean == pytest.approx(found.difference)
        rows.append(row.replace(contrast=made, images=scores.crossed()))
    return doc.replace(rows=(doc.rows[0], *rows))


LOSES_A_POINT = make_study({"base": [0.9] * 8, "less": [0.89] * 8})


def test_a_difference_must_also_hold_for_other_test_images():
    docs = [with_images(LOSES_A_POINT, noise) for noise in (5, 20)]
    clear, vague = (compare(doc)[1] for doc in docs)
    assert clear.p == 2 / 2**8  # the sign flips are the weaker test
    assert compare(LOSES_A_POINT)[1].p == 2 / 2**8
    assert vague.p == pytest.approx(2 * stats.t.sf(20**0.5 / 20 * 20**0.5, 399), abs=0.02)
    assert (clear.effect, vague.effect) == ("worse", "undecided")
    assert clear.with_images
    assert clear.ci_high < 0 < vague.ci_high


UNFINISHED = sorted(set(get_args(State)) - {"finished", "diverged"})
EIGHT = (0.71, 0.72, 0.70, 0.73, 0.71, 0.72, 0.70, 0.73)


def add(scores: Sequence[float], points: float, *noise: float) -> list[float | str]:
    """Return scores moved by ``points``, and by each of ``noise`` in turn."""
    extra = noise or (0.0, 0.1)
    return [s + (points + extra[i % len(extra)]) / 100 for i, s in enumerate(scores)]


def test_pairs_share_a_seed_and_not_a_position():
    doc = make_study({"base": [0.1, 0.5, 0.3], "less": [0.1, 0.5, 0.3]})
    base, less = doc.rows
    turned = doc.replace(rows=(base, less.replace(trials=less.trials[::-1])))
    assert compare(turned)[1].pairing == 0, "all differences are 0"


@pytest.mark.parametrize(("m", "needed"), [(1, 6), (2, 7), (3, 8), (5, 8), (6, 9), (12, 10)])
def test_p_needs_enough_planned_seeds_and_all_of_them(m, needed):
    p, found = 2 / 2**needed, []
    for pairs, planned in ((needed, needed), (needed - 1, needed), (needed - 1, needed - 1)):
        base = (EIGHT * 2)[:pairs]
        plan = Plan(seeds=planned)
        doc = make_study({"base": base, "less": add(base, 0, -1, -2)}, num_comparisons=m, plan=plan)
        row = compare(doc)[1]
        found.append((row.p, row.p_holm, row.seeds_missing, row.plan_needed))
    assert found == [(p, m * p, None, None), (None, None, 1, None), (None, None, None, needed)]


FOLDS = {"base_config": {"data.folds": 5}}


def test_folds_share_training_images_which_widens_the_interval():
    rows = {"base": EIGHT[:5], "less": add(EIGHT[:5], 0, -1, -2, -3, -4, -5), "same": EIGHT[:5]}
    _, less, same = compare(make_study(rows, **FOLDS))
    assert (same.difference, same.p, same.ci_low, same.effect) == (0, None, None, None)
    # Differences -1, ..., -5: mean -3, s^2 = 10 / 4 = 2.5; s^2 (1 / 5 + 1 / 4) = 1.125.
    half = stats.t.isf(level(5, 5) / 2, 4) * 1.125**0.5
    assert (less.ci_low, less.ci_high) == (close(-3 - half), close(-3 + half))
    assert less.p == close(2 * stats.t.sf(3 / 1.125**0.5, 4))
    assert less.p_holm == close(2 * less.p)
    low, high = stats.t.interval(1 - level(5, 5, 0.05 / 2), 4, loc=-3, scale=1.125**0.5)
    assert (less.joint_low, less.joint_high) == (close(low), close(high))
    assert (less.pooled_low, less.seeds_missing, less.below) == (None, None, None)
    assert less.score_sd == compare(make_study(rows))[1].score_sd
    found = less.detectable / 1.125**0.5
    limit = stats.t.isf(level(5, 5, 0.05 / 2) / 2, 4)
    assert stats.nct.sf(limit, 4, found) == pytest.approx(0.8, abs=1e-4)


def test_folds_have_other_test_images_so_single_images_are_not_compared(here):
    for folds, is_compared in ((None, True), (2, False)):
        for variant in ("full", "no-norm"):
            for seed in (0, 1):
                fabricate(variant, seed, changes={"data.folds": folds} if folds else {})
        doc = read_results(write_study(f"{STUDY}data: {{folds: {folds or 'null'}}}\n"), ROOT)
        assert (doc.rows[1].contrast is not None) == is_compared
        assert all((row.images is not None) == is_compared for row in doc.rows)


def count(trials, *states):
    return sum(trial.state in states for trial in trials)


@settings(max_examples=30, deadline=None)
@given(studies())
def test_numbers_are_those_of_the_finished_trials_alone(doc):
    theirs = {t.seed: t.test_score for t in doc.rows[0].trials if t.state == "finished"}
    for row, found in zip(doc.rows, compare(doc), strict=True):
        mine = {t.seed: t.test_score for t in row.trials if t.state == "finished"}
        percent = [100 * value for value in mine.values()]
        assert scores(row, ACCURACY) == {seed: 100 * value for seed, value in mine.items()}
        assert found.n == count(row.trials, "finished") == len(percent)
        assert found.num_diverged == count(row.trials, "diverged")
        assert found.num_unfinished == count(row.trials, *UNFINISHED)
        assert found.score_mean == (close(statistics.fmean(percent)) if percent else None)
        assert found.score_sd == (close(statistics.stdev(percent)) if found.n > 1 else None)
        seconds = [30.5 + seed for seed in mine]
        assert found.seconds_mean == (close(statistics.fmean(seconds)) if seconds else None)
        assert found.seconds_total == (close(sum(seconds)) if seconds else None)
        if row is doc.rows[0]:
            assert (found.difference, found.p, found.seeds_missing, found.verdict) == (None,) * 4
            continue
        paired = [100 * (mine[seed] - theirs[seed]) for seed in mine.keys() & theirs.keys()]
        assert found.num_pairs == len(paired)
        assert found.difference == (close(statistics.fmean(paired)) if paired else None)
        assert (found.ci_low is None) == (found.ci_high is None)
        assert (found.ci_low is None) >= (len(paired) < 3), "or the looks share no value"
        diverged = found.num_diverged or count(doc.rows[0].trials, "diverged")
        no_test = bool(found.lacks_test or diverged)
        assert (found.p is None) == (found.p_holm is None) == no_test
        assert all(value == value for value in dataclasses.astuple(found)), "no NaN"
        if found.p is not None:
            assert 0 < found.p <= found.p_holm <= 1
        if found.ci_low is not None:
            assert found.joint_low <= found.ci_low <= found.ci_high <= found.joint_high
            # An earlier look may hold the interval, and a later pair the mean.
            is_inside = found.ci_low <= found.difference <= found.ci_high
            assert is_inside or found.num_pairs != 3


@pytest.mark.parametrize("where", ["base", "less"])
def test_a_diverged_trial_takes_the_p_and_asks_for_no_more_seeds(where):
    plan = Plan(seeds=9)
    for count, missing in ((9, None), (4, 5)):
        values = [0.9 + i / 1000 for i in range(count)]
        rows: dict[str, list[float | str]] = {"base": [*values], "less": add(values, 0, -1, -2)}
        whole = compare(make_study(rows, plan=plan))[1]
        assert (whole.seeds_missing, whole.p is None) == (missing, missing is not None)
        doc = make_study(rows | {where: ["diverged", *rows[where][1:]]}, plan=plan)
        found = compare(doc)
        assert (found[1].p, found[1].p_holm, found[1].seeds_missing) == (None, None, None)
        assert found[1].num_pairs == count - 1
        assert "test" not in notes(doc, found)


@pytest.mark.parametrize(
    ("per_image", "reason"),
    [
        (ACCURACY.per_image, "the predictions are not at hand"),
        (None, "accuracy has no number for each test image"),  # as of mAP or a balanced accuracy
    ],
)
def test_notes_say_of_the_test_images_what_the_metric_allows(monkeypatch, per_image, reason):
    row = TASKS["classify"]
    headline = dataclasses.replace(ACCURACY, per_image=per_image)
    monkeypatch.setitem(TASKS, "classify", dataclasses.replace(row, headline=headline))
    doc = make_study({"base": [0.5, 0.6, 0.7], "less": [0.4, 0.6, 0.6]}).replace(num_test=100)
    said = notes(doc, compare(doc))
    assert f"because {reason}" in said["difference"]
    assert ("sampling" in said) == (per_image is not None), "the formula is that of a share"


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


THREE = EIGHT[:3]
MARGIN: dict[str, Any] = {"margin": 2.0}
X = "less"
"""The judged variant."""
SOURCE = {"reference": make_reference({"base": 71.0, X: 80.0})}


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


def test_the_margin_is_that_of_the_file_and_the_last_one_of_an_older_document(here):
    study = write_study(f"{STUDY}\nequivalence_margin: 1.0")
    doc = read_results(study, ROOT)
    assert doc.margin == 1.0
    stored = doc.model_dump(mode="json")
    del stored["margin"]
    margin = {"date": "2026-01-01", "num_finished": 3}
    stored["margins"] = [margin | {"points": points} for points in (2.0, 1.0)]
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
