"""Verdicts at every look: levels, what is found and stays, and the plan that no edit moves."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.fabricated_study import cell, make_study
from tests.runner.study.trials import ROOT, STUDY, fabricate, write_study
from vitcli.runner.errors import InputError
from vitcli.runner.study.collect import read_recorded_plan, read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.looks import level, looks_at
from vitcli.runner.study.notes import notes
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.result import Plan, StudyResult
from vitcli.runner.study.run import save_results, write_plan
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.statistics import compare, looks_of
from vitcli.runner.study.table import build, build_details


@pytest.mark.parametrize(
    ("planned", "alpha", "expected"),
    [
        (3, 0.05, {3: 0.045, 4: 0.0109, 6: 0.0022}),
        (3, 0.01, {3: 0.009, 8: 0.00012}),
        (8, 0.05, {7: 0.00104, 8: 0.0438, 9: 0.0208, 12: 0.0047, 24: 0.0007}),
        (8, 0.01, {8: 0.00869}),
        (24, 0.05, {24: 0.0443}),
        (100, 0.05, {99: 0.0, 100: 0.045}),
    ],
)
def test_levels(planned, alpha, expected):
    """Those of the simulation that the rule was chosen by, to the digits printed there."""
    found = {pairs: level(pairs, planned, alpha) for pairs in expected}
    assert found == pytest.approx(expected, rel=0.02, abs=5e-5)


def crossed(differences: np.ndarray, planned: int, last: int) -> np.ndarray:
    """Return which rows of differences (studies, pairs) a t test finds at some look."""
    found = np.zeros(len(differences), bool)
    sums, squares = differences.cumsum(1), (differences**2).cumsum(1)
    for pairs in looks_at(last, planned):
        total = sums[:, pairs - 1]
        variance = (squares[:, pairs - 1] - total**2 / pairs) / (pairs - 1)
        t = abs(total) / np.sqrt(pairs * variance)
        found |= t >= stats.t.isf(level(pairs, planned) / 2, pairs - 1)
    return found


@pytest.mark.parametrize(("planned", "last"), [(3, 9), (5, 5), (8, 24), (70, 140)])
def test_looking_after_each_pair_finds_nothing_in_95_percent(planned, last):
    differences = np.random.default_rng(0).normal(3, 7, (20_000, last))
    expected = 0.05 * (0.9 + 0.1 * (1 - planned / last))  # of alpha, by the last look
    share = crossed(differences - 3, planned, last).mean()
    assert share == pytest.approx(expected, abs=3 * (0.05 * 0.95 / 20_000) ** 0.5)
    assert crossed(differences, planned, last).mean() > share


def made(differences: list[float], planned: int, **fields: Any) -> StudyResult:
    base = [0.7 + 0.001 * (i % 3) for i in range(len(differences))]
    row = [b + d / 100 for b, d in zip(base, differences, strict=True)]
    return make_study({"base": base, "row": row}, plan=Plan(seeds=planned), **fields)


CLEAR = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98]
STEPS = [-0.2, 0.1, 1.0, 1.1, 0.9, 1.05, 0.95]
"""p of the sign flips is 6 / 2^7 = 0.047, between the level of a plan of 7 and 0.05."""


@pytest.mark.parametrize(
    ("differences", "planned", "effect", "decided_at"),
    [
        (CLEAR, 8, "better", 8),
        (CLEAR, 12, "undecided", None),  # sign flips of 8 pairs are above the early level
        (CLEAR * 2, 8, "better", 16),  # the present look finds it, too
        ([*CLEAR, *[-9.0, 9.0] * 4], 8, "better", 8),  # a verdict does not disappear
        ([*CLEAR, *[-1.0] * 40], 8, "looks contradict each other", 8),
        ([-d for d in CLEAR], 8, "worse", 8),
        ([*[9.0, -9.0] * 4, *[1.0, 1.1] * 3], 8, "undecided", None),
        (STEPS, 7, "better", 7),  # at the plan, sign flips may spend all of alpha
        ([*STEPS, 0.1], 7, "better", 7),
        ([-0.2, 0.1, 0.3, 0.3, 0.9, 1.0, 1.4], 7, "undecided", None),  # p of the t test is 0.045
    ],
)
def test_a_verdict_stays_unless_another_look_contradicts_it(
    differences, planned, effect, decided_at
):
    doc = made(differences, planned)
    row = compare(doc)[1]
    assert (row.effect, row.decided_at) == (effect, decided_at)
    if row.p is not None and "contradict" not in effect:
        assert (row.p_holm <= row.level) == (decided_at == len(differences))
    is_earlier = decided_at and len(differences) > decided_at and "contradict" not in effect
    assert cell(doc, "row", "effect") == effect + f" (at {decided_at} seeds)" * bool(is_earlier)


@pytest.mark.parametrize(
    ("later", "is_outside"), [([-0.8, 1.2] * 8, True), ([0.9, 1.1] * 8, False)]
)
def test_a_mean_beside_its_interval_is_said_to_be_outside(later, is_outside):
    doc = made([*CLEAR, *later], 8)
    row = compare(doc)[1]
    assert row.effect == "better"
    assert row.lies_outside == is_outside == (not row.ci_low <= row.difference <= row.ci_high)
    assert ("outside [" in cell(doc, "row", "difference [95 % CI]")) == is_outside
    assert any("outside" in note for note in build(doc).notes) == is_outside


@pytest.mark.parametrize(("m", "planned"), [(5, 8), (9, 9)])
def test_a_clear_row_stays_clear_beyond_the_plan(m, planned):
    """There, sign flips of one to three more pairs are above the level."""
    for pairs in range(planned, planned + 5):
        doc = made([-8 + 0.1 * (i % 4) for i in range(pairs)], planned, num_comparisons=m)
        row = compare(doc)[1]
        assert (row.effect, row.p is None, row.seeds_missing) == ("worse", False, None)
        assert row.joint_high < 0


def test_intervals_never_become_wider_and_have_the_level_of_their_look():
    widths = []
    for pairs in range(3, 17):
        row = compare(made((CLEAR * 2)[:pairs], 8))[1]
        widths.append(row.ci_high - row.ci_low)
        assert -100 <= row.joint_low <= row.ci_low
    assert widths == sorted(widths, reverse=True)
    row = compare(made(CLEAR, 8))[1]
    error = np.std(CLEAR, ddof=1) / 8**0.5
    assert row.ci_high - 1.0 == pytest.approx(stats.t.isf(level(8, 8) / 2, 7) * error)
    equal = compare(made([1.0] * 8, 8, margin=1.5))[1]
    assert (equal.effect, equal.p_equivalent) == ("better", None), "not equivalent"


def test_equal_differences_have_no_interval_because_nothing_is_known_of_their_spread():
    doc = made([2.2] * 3, 3)
    shown = dict(zip([c.header for c in build(doc).columns], build(doc).rows[1], strict=True))
    assert shown["difference [95 % CI]"] == "+2.20"
    assert any("with unequal differences" in note for note in build(doc).notes)
    *_, row = build_details(made([1.0] * 8, 8)).rows
    assert (row[1], row[-1]) == ("", ""), "nor one for all rows, nor a detectable difference"


def test_p_is_the_larger_of_both_tests_without_predictions_too():
    skewed = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 30.0]
    row = compare(made(skewed, 8))[1]
    assert row.p == pytest.approx(stats.ttest_1samp(skewed, 0).pvalue)
    assert row.p > 2 / 2**8
    assert (row.joint_low < 0, row.effect) == (True, "undecided")


def declare(study: Study) -> None:
    ROOT.mkdir(parents=True, exist_ok=True)
    write_plan(plan_study(study, ROOT, (), saved=SavedTrials(SAVED)), Options())


def plan_of(study: Study, root: str | Path = ROOT) -> tuple[Plan, StudyResult]:
    doc = read_results(study, Path(root), (), SavedTrials(SAVED))
    assert doc.plan
    return doc.plan, doc


def planned(study: Study, root: str | Path = ROOT) -> tuple[int, int | None]:
    plan, doc = plan_of(study, root)
    return plan.seeds, doc.other_plan


def test_no_edit_moves_the_plan_after_the_first_result(here):
    declare(write_study(f"{STUDY}\nplanned_seeds: 5"))
    eight = write_study(f"{STUDY}\nplanned_seeds: 8")
    assert planned(eight) == (8, None), "until there is a result, the file counts"
    declare(eight)
    fabricate("full", 0)
    declare(eight)
    for changed in (
        write_study(f"{STUDY}\nplanned_seeds: 20"),
        write_study(STUDY.replace("seeds: [0, 1]", "seeds: [20]\nplanned_seeds: 6")),
        write_study(STUDY),
        load_study("mine.yaml", seeds=[*range(30)]),
    ):
        declare(changed)
        assert planned(changed) == (8, changed.planned_seeds)
    save_results(plan_study(changed, ROOT, ()), SAVED)
    ours = ROOT / "plan.json"
    ours.write_text(ours.read_text().replace('"seeds": 8', '"seeds": 9'))
    save_results(plan_study(changed, ROOT, ()), SAVED)
    ours.unlink()
    assert planned(changed) == (8, 3), "the copy beside the saved trials counts, and it stays"
    assert read_recorded_plan(SAVED / "mine").seeds == 8


MORE = "  more: {model.depth: 1}\n"
TABLES = [
    ([STUDY.replace("no-norm: ", "other: ")], 1, [], ["other"]),
    ([STUDY + MORE], 2, [], ["more"]),
    ([STUDY + MORE, STUDY], 2, [], []),
    ([STUDY.replace("none}", "rms_norm}")], 2, ["no-norm"], []),
    ([STUDY.replace("none}", "rms_norm}"), STUDY], 2, ["no-norm"], []),
    ([STUDY.replace("full: {}", "full: {model.depth: 1}")], 2, ["full"], []),
    ([STUDY.replace("seeds:", "optim: {lr: 0.5}\nseeds:")], 2, ["full", "no-norm"], []),
    ([f"base: quickstart\nseeds: [0, 1]\nvariants:\n  a: {{model.depth: 1}}\n{MORE}".replace(
        "more: {model.depth: 1}", "b: {model.depth: 3}")], 2, [], ["a", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "comparisons", "edited", "added"), TABLES)
def test_a_row_that_had_a_result_counts_and_a_later_one_is_named(
    here, texts, comparisons, edited, added
):
    """The folder of the study and the saved trials alone, on another machine, say the same."""
    declare(write_study(f"{STUDY}planned_seeds: 6"))
    fabricate("full", 0).path.rename(ROOT / "full/seed0.stale1")
    bases = {write_study().rows["full"]}
    for text in texts:
        study = write_study(f"{text}planned_seeds: 8")
        bases.add(study.rows[study.baseline.name])
        declare(study)
    save_results(plan_study(study, ROOT, ()), SAVED)
    for root in (ROOT, "elsewhere"):
        plan, doc = plan_of(study, root)
        assert plan == plan_of(study)[0]
        assert (plan.seeds, doc.other_plan, doc.num_comparisons) == (6, 8, comparisons)
        text = notes(doc, compare(doc))["plan"]
        assert f"Edited after the first result: {' and '.join(edited)}." in text or not edited
        assert f"Added after the first result: {' and '.join(added)}." in text or not added
        assert [word in text for word in ("Edited", "Added")] == [bool(edited), bool(added)]
        assert ("another name" in text) == (len(bases) > 1)


@pytest.mark.parametrize("seeds", [3, 8])
def test_saved_trials_bring_the_plan_of_the_study_that_saved_them(here, seeds):
    fields = f"seeds: [0, 1, 2, 3]\nplanned_seeds: {seeds}"
    study = write_study(STUDY.replace("seeds: [0, 1]", fields))
    declare(study)
    for variant in ("full", "no-norm"):
        for seed in range(4):
            fabricate(variant, seed)
    save_results(plan_study(study, ROOT, ()), SAVED)
    text = Path("mine.yaml").read_text()
    Path("copy.yaml").write_text(text.replace(f"planned_seeds: {seeds}", "planned_seeds: 20"))
    copy = load_study("copy.yaml")
    plan, _ = plan_of(copy, "none")
    assert (plan.seeds, bool(plan.date)) == (seeds, True)
    (SAVED / "mine" / "plan.json").unlink()
    plan, _ = plan_of(copy, "none")
    assert (plan.seeds, bool(plan.date)) == (4, False)


def test_another_configuration_of_the_same_name_has_its_own_plan(here):
    study = write_study(f"{STUDY}\nplanned_seeds: 5")
    declare(study)
    fabricate("full", 0)
    save_results(plan_study(study, ROOT, ()), SAVED)
    Path("mine.yaml").write_text(f"{STUDY}\nplanned_seeds: 8")
    changed = load_study("mine.yaml", typed={"optim.lr": 0.5})
    plan, doc = plan_of(changed, "elsewhere")
    assert (plan.seeds, doc.other_plan, len(plan.versions)) == (8, None, 1)
    shutil.copytree(ROOT / "full" / "seed0", Path("elsewhere/full/seed0"))
    plan, _ = plan_of(changed, "elsewhere")
    assert (plan.seeds, plan.date) == (3, ""), "its own result, not the other's plan"


@pytest.mark.parametrize("typed", [{"optim.lr": 0.5}, {"data.name": "mnist"}])
def test_plans_of_one_file_lie_apart_beside_saved_trials(here, typed):
    text = f"{STUDY}\nplanned_seeds: "
    for root, seeds, changes in ((ROOT, 6, {}), (Path("runs/changed"), 3, typed)):
        write_study(f"{text}{seeds}")
        study = load_study("mine.yaml", typed=changes)
        root.mkdir(parents=True)
        write_plan(plan_study(study, root, ()), Options())
        fabricate("full", 0, folder=root / "full/seed0", changes=changes)
        save_results(plan_study(study, root, ()), SAVED)
    write_study(f"{text}20")
    for seeds, changes in ((6, {}), (3, typed)):
        assert planned(load_study("mine.yaml", typed=changes), "elsewhere") == (seeds, 20)


def test_names_of_planned_rows_without_their_hashes_are_read(here):
    """In the file of an unchanged study was the plan of the last configuration that was saved."""
    study = write_study(f"{STUDY}\nplanned_seeds: 20")
    before = {"seeds": 6, "versions": [{"full": study.rows["full"], "no-norm": "", "gone": ""}]}
    (SAVED / "mine").mkdir(parents=True)
    (SAVED / "mine/plan.json").write_text(json.dumps({"study": "mine", "planned": before}))
    for asked, seeds in ((study, 6), (load_study("mine.yaml", typed={"optim.lr": 0.5}), 20)):
        plan, doc = plan_of(asked)
        assert (plan.seeds, doc.num_comparisons) == (seeds, 2 if seeds == 6 else 1)
        assert not plan.edited


def test_looks_follow_the_order_in_which_seeds_were_asked_for(here):
    later = write_study(STUDY.replace("seeds: [0, 1]", "seeds: [5, 6]"))
    declare(later)
    fabricate("full", 5)
    declare(load_study("mine.yaml", seeds=[0, 1, 5, 6]))
    assert read_recorded_plan(ROOT).order == (5, 6, 0, 1)
    base, row = made([1.0, 2.0, 3.0], 3).rows
    doc = made([1.0, 2.0, 3.0], 3).replace(plan=Plan(seeds=3, order=(2, 0)), rows=(base, row))
    assert [look.differences for look in looks_of(doc)[0]] == [pytest.approx([3.0, 1.0, 2.0])]
    chosen = doc.replace(plan=Plan(seeds=3, order=(7, 0, 1, 9, 2)))
    assert "left out 7 and 9" in notes(chosen, compare(chosen))["plan"]


@pytest.mark.parametrize("folder", [ROOT, SAVED / "mine"])
@pytest.mark.parametrize("content", ["{", "<<<<<<< ours\n", "{}", '{"planned": {"seeds": 1}}'])
def test_a_damaged_plan_is_refused_by_its_name(here, folder, content):
    study = write_study()
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(content)
    with pytest.raises(InputError, match=f"{folder}/plan.json: damaged"):
        planned(study)
    for of_before in ({"trials": {}}, {"margins": []}):
        (folder / "plan.json").write_text(json.dumps({"study": "mine"} | of_before))
        assert planned(study) == (3, None)


def test_what_is_found_at_the_plan_has_a_p_of_at_most_the_stated_level():
    """At a later step of Holm's, the sign flips of a row may lie between its level and 0.05."""
    draws = np.random.default_rng(0)
    steps = 0
    for _ in range(60):
        base = 0.7 + 0.01 * draws.standard_normal(8)
        clear, close = (base + shift + 0.0055 * draws.standard_normal(8) for shift in (0.1, 0.004))
        rows = {"base": base, "clear": clear, "close": close}
        doc = make_study({name: [float(x) for x in values] for name, values in rows.items()})
        for row in compare(doc)[1:]:
            if row.effect in ("better", "worse") and row.p_holm is not None:
                assert row.p_holm <= row.level
                steps += row.p_holm > 0.044
    assert steps
