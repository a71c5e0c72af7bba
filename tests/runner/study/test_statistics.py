"""The statistics of a study, checked by hand, with scipy and with an independent count."""

import dataclasses
import itertools
import statistics
from typing import get_args

import pytest
from hypothesis import given, settings
from scipy import stats

from tests.fabricated_study import make_study
from tests.runner.study.tables import studies
from tests.runner.study.trials import ROOT, STUDY, fabricate, write_study
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import State
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.looks import level
from vitcli.runner.study.notes import notes
from vitcli.runner.study.repeated_runs import collect_runs
from vitcli.runner.study.result import Plan
from vitcli.runner.study.statistics import RowStatistics, compare, scores

UNFINISHED = sorted(set(get_args(State)) - {"finished", "diverged"})
EIGHT = (0.90, 0.91, 0.92, 0.93, 0.94, 0.91, 0.90, 0.92)


def close(value):
    return pytest.approx(value, abs=1e-6)


def shifted(values, *points):
    """Return each value minus ``points`` percentage points; ``points`` repeats."""
    return [v - p / 100 for v, p in zip(values, itertools.cycle(points), strict=False)]


def test_pairs_share_a_seed_and_not_a_position():
    doc = make_study({"base": [0.1, 0.5, 0.3], "less": [0.1, 0.5, 0.3]})
    base, less = doc.rows
    turned = doc.replace(rows=(base, less.replace(trials=less.trials[::-1])))
    assert compare(turned)[1].ci_low == compare(turned)[1].ci_high == 0


@pytest.mark.parametrize(("m", "needed"), [(1, 6), (2, 7), (3, 8), (5, 8), (6, 9), (12, 10)])
def test_p_needs_enough_planned_seeds_and_all_of_them(m, needed):
    p, found = 2 / 2**needed, []
    for pairs, planned in ((needed, needed), (needed - 1, needed), (needed - 1, needed - 1)):
        base = (EIGHT * 2)[:pairs]
        plan = Plan(seeds=planned)
        doc = make_study({"base": base, "less": shifted(base, 1, 2)}, num_comparisons=m, plan=plan)
        row = compare(doc)[1]
        found.append((row.p, row.p_holm, row.seeds_missing, row.plan_needed))
    assert found == [(p, m * p, None, None), (None, None, 1, None), (None, None, None, needed)]


FOLDS = {"base_config": {"data.folds": 5}}


def test_folds_share_training_images_which_widens_the_interval():
    rows = {"base": EIGHT[:5], "less": shifted(EIGHT[:5], 1, 2, 3, 4, 5), "same": EIGHT[:5]}
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


def test_folds_decide_by_p_also_for_equivalence_and_in_other_repetitions():
    rows = {"base": EIGHT * 2, "less": shifted(EIGHT * 2, 3, 3.5), "near": shifted(EIGHT * 2, 0, 1)}
    doc = make_study(rows, margin=2.0, **FOLDS)
    _, less, near = compare(doc)
    assert (less.effect, near.effect) == ("worse", "equivalent")
    # 16 differences of 0 and -1: mean -0.5, s^2 = 4 / 15.
    error = (4 / 15 * (1 / 16 + 1 / 4)) ** 0.5
    assert near.p == close(2 * stats.t.sf(0.5 / error, 15))
    assert near.p_equivalent == close(stats.t.sf((2 - 0.5) / error, 15))
    assert [row.effect for row in compare(make_study(rows, margin=2.0))] == [
        None, "worse", "worse, within the margin",
    ]  # fmt: skip


def test_folds_have_other_test_images_so_single_images_are_not_compared(here):
    for folds, is_compared in ((None, True), (2, False)):
        for variant in ("full", "no-norm"):
            for seed in (0, 1):
                fabricate(variant, seed, changes={"data.folds": folds} if folds else {})
        doc = read_results(write_study(f"{STUDY}data: {{folds: {folds or 'null'}}}\n"), ROOT)
        assert (doc.rows[1].contrast is not None) == is_compared
        assert all((row.images is not None) == is_compared for row in doc.rows)
        runs = [RunDir(ROOT / "full" / f"seed{seed}") for seed in (0, 1)]
        assert (collect_runs(runs).rows[0].images is not None) == is_compared


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
        check_order(found)


def check_order(found: RowStatistics) -> None:
    if found.ci_low is not None:
        assert found.joint_low <= found.ci_low <= found.ci_high <= found.joint_high
        if found.num_pairs == 3:  # an earlier look may hold the interval, and a later pair the mean
            assert found.ci_low <= found.difference <= found.ci_high
    if found.p is not None:
        assert 0 < found.p <= found.p_holm <= 1
    assert all(value == value for value in dataclasses.astuple(found)), "no NaN"


@pytest.mark.parametrize("where", ["base", "less"])
def test_a_diverged_trial_takes_the_p_and_asks_for_no_more_seeds(where):
    plan = Plan(seeds=9)
    for count, missing in ((9, None), (4, 5)):
        values = [0.9 + i / 1000 for i in range(count)]
        rows: dict[str, list[float | str]] = {"base": [*values], "less": shifted(values, 1, 2)}
        whole = compare(make_study(rows, plan=plan))[1]
        assert (whole.seeds_missing, whole.p is None) == (missing, missing is not None)
        doc = make_study(rows | {where: ["diverged", *rows[where][1:]]}, plan=plan)
        found = compare(doc)
        assert (found[1].p, found[1].p_holm, found[1].seeds_missing) == (None, None, None)
        assert found[1].num_pairs == count - 1
        assert "test" not in notes(doc, found)
