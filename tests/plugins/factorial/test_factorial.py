"""Factorial studies: effects, and a study from file to table. tests/judges has R's effects."""

import json

import numpy as np
import pytest

from experiments.statistics import factorial
from tests.fabricated_study import make_study
from tests.figure_checks import faults
from tests.runner.study.trials import write_study
from vitcli import plugin
from vitcli.plugins.factorial.crossing import cells
from vitcli.plugins.factorial.effects import (
    build_effects,
    cell_scores,
    chance_score,
    effects,
    effects_of,
)
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.listing import describe_experiment
from vitcli.runner.study import design
from vitcli.runner.study.figures import figures_of
from vitcli.runner.study.result import Origin, Plan, StudyResult
from vitcli.runner.study.significance import ALPHA
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import render

PARTS = ("a", "b", "c")


def scores(main, pairs, *, seeds=3, noise=0.0):
    random = np.random.default_rng(0)
    blocks = random.normal(0, 5 * noise, seeds)
    found = {}
    for cell in cells(PARTS):
        sign = {part: 0.5 if part in cell else -0.5 for part in PARTS}
        value = 50 + sum(points * sign[part] for part, points in main.items())
        value += sum(points * sign[a] * sign[b] for (a, b), points in pairs.items())
        found[cell] = {k: value + blocks[k] + random.normal(0, noise) for k in range(seeds)}
    return found


def test_an_effect_is_found_at_the_level_of_a_whole_seed():
    made = scores({"a": 30.0}, {("a", "c"): 2.0}, seeds=5, noise=1.0)
    rows = {planned: effects(PARTS, made, planned) for planned in (3, 5)}
    found = {planned: {"".join(e.parts): e for e in row} for planned, row in rows.items()}
    assert (found[3]["a"].decided_at, found[5]["a"].decided_at) == (5, 5)
    assert found[5]["b"].decided_at is None
    wide, narrow = (found[planned]["a"] for planned in (3, 5))
    # The present look of a plan of 3 has a small level, so the third look's interval stays.
    assert wide.high - wide.low > narrow.high - narrow.low
    three = {cell: {seed: by_seed[seed] for seed in range(3)} for cell, by_seed in made.items()}
    del made[frozenset("b")][4], made[frozenset("c")][3]  # three whole seeds are left
    assert effects(PARTS, made, 3) == effects(PARTS, three, 3)
    del made[frozenset("a")][2]
    first = effects(PARTS, made, 3)[0]
    assert (first.num_seeds, first.low, first.p, first.decided_at) == (2, None, None, None)
    assert effects(PARTS, {cell: row for cell, row in made.items() if "a" not in cell}, 3) == ()
    turned = scores({"a": 30.0}, {}, seeds=30, noise=1.0)
    for cell, by_seed in turned.items():
        sign = -1 if "a" in cell else 1
        by_seed.update({seed: y + 100 * sign for seed, y in by_seed.items() if seed > 2})
    assert effects(PARTS, turned, 3)[0].decided_at is None, "looks contradict each other"


@pytest.mark.parametrize(
    ("seeds", "planned", "points"),
    [
        *((3, 3, 40), (4, 4, 9), (8, 8, 2), (12, 8, 9), (6, 12, 20), (30, 3, 9)),
        (9, 9, 0),  # no effect
    ],
)
def test_an_effect_is_judged_as_a_row_whose_differences_are_its_own(seeds, planned, points):
    """The rows have the mean of the signed scores of each seed, beside a baseline of 50 %."""
    made = scores({"a": points}, {("a", "b"): points / 4}, seeds=seeds, noise=1.0)
    found = effects(PARTS, made, planned)
    rows = {"baseline": [0.5] * seeds}
    for effect in found:
        by_seed = []
        for seed in range(seeds):
            signs = {cell: (-1) ** len({*effect.parts} - cell) for cell in made}
            by_seed.append(sum(signs[cell] * made[cell][seed] for cell in made) / len(made))
        rows["+".join(effect.parts)] = [0.5 + mean / 100 for mean in by_seed]
    plan = Plan(seeds=planned, order=tuple(range(seeds)))
    judged = compare(make_study(rows, plan=plan))[1:]
    assert [e.decided_at for e in found] == [row.decided_at for row in judged]
    assert any(e.decided_at for e in found) == bool(points)
    assert [e.p_holm for e in found] == pytest.approx([row.p_holm for row in judged])
    for effect, row in zip(found, judged, strict=True):
        scaled = [2 ** len(effect.parts) * x for x in (row.difference, row.ci_low, row.ci_high)]
        assert [effect.value, effect.low, effect.high] == pytest.approx(scaled)


@pytest.mark.parametrize(
    ("parts", "seeds", "kind"),
    [("abc", 3, "part x seed terms"), ("ab", 8, "one part is another training")],
)
def test_few_studies_without_an_effect_find_one(parts, seeds, kind):
    random, studies, false = np.random.default_rng(0), 300, 0
    for _ in range(studies):
        by_seed = random.normal(0, 1, (2, seeds))
        changed = {part: random.normal(0, 3, seeds) for part in parts}
        made = {}
        for cell in cells(parts):
            drawn = by_seed[0] + sum(changed[part] for part in cell)
            error = 1.0
            if kind == "one part is another training":
                drawn, error = by_seed[int("a" in cell)], 0.01
            made[cell] = dict(enumerate(50 + drawn + error * random.normal(0, 1, seeds)))
        false += any(each.decided_at for each in effects(parts, made, seeds))
    assert false / studies <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / studies) ** 0.5


def test_looks_follow_the_plan_and_count_every_effect_that_the_study_has_had():
    order = (3, 1, 2, 0, *range(4, 10))
    made = scores({"a": 9.0}, {}, seeds=10, noise=1.0)
    for by_seed in made.values():
        by_seed[0] *= 2  # the first look has seed 0 or not
    in_order = {cell: {k: row[seed] for k, seed in enumerate(order)} for cell, row in made.items()}
    rows = {"full": "0", "a": "1", "b": "2", "c": "3", "a+b": "4"}
    plan = Plan(seeds=10, order=order, versions=(rows,))
    assert effects(PARTS, made, 3, plan) == effects(PARTS, in_order, 3)
    assert effects(PARTS, made, 3, plan) != effects(PARTS, made, 3)
    assert plan.num_effects == 6
    assert plan.extended({"full": "0", "a": "1", "b": "2"}, ()).num_effects == 6
    wider = plan.extended(rows | {"c": "5"}, ())
    assert wider.num_effects == 9, "c, a x c and b x c count in both versions"
    narrow, wide = (min(e.p_holm for e in effects(PARTS, made, 10, p)) for p in (plan, wider))
    assert wide == pytest.approx(narrow * 9 / 6)
    few = {cell: {seed: by_seed[seed] for seed in order[:3]} for cell, by_seed in made.items()}
    is_found = [effects(PARTS, few, 3, p)[0].decided_at for p in (plan, wider)]
    assert is_found == [3, None], "the variances of removed effects are not at hand to pool"


STUDY = """
base: quickstart
seeds: [0, 1]
design: factorial
variants:
  full: {}
  no-norm: {model.norm: none}
  one-head: {model.num_heads: 1}
"""
SCORES = {
    "full": [0.90, 0.92],
    "no-norm": [0.80, 0.82],
    "one-head": [0.88, 0.90],
    "no-norm+one-head": [0.60, 0.62],
}


def made(**changes: list[float | str]) -> StudyResult:
    rows = SCORES | {name.replace("_", "-"): value for name, value in changes.items()}
    return make_study(rows, parts=("no-norm", "one-head"), data="cifar10")


def test_every_combination_is_a_variant(here):
    study = write_study(STUDY)
    assert study.parts == ("no-norm", "one-head")
    assert [each.name for each in study.variants] == list(SCORES)
    both = study.variants[-1].spec.model
    assert (both.norm, both.num_heads) == ("none", 1)
    assert len(study.trials()) == 8


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  one-head: {model.num_heads: 1}\n", "", "2 to 7 variants"),
        ("one-head:", "one+head:", "2 to 7 variants"),
        ("model.num_heads: 1", "model.norm: rms", "two variants change model.norm"),
        ("seeds:", "data: {val_split: 100}\ntune: {optim.lr: [0.1]}\nseeds:", "'tune'"),
        ("full: {}", "full: {data: {folds: 5}}", "data.folds"),
        ("full: {}", "full: {experiment: folded}", "data.folds"),
    ],
)
def test_what_cannot_be_crossed_is_refused(here, old, new, problem):
    (here / "folded.yaml").write_text("base: quickstart\ndata: {folds: 5}\n")
    with pytest.raises(ConfigError, match=problem):
        write_study(STUDY.replace(old, new))


def test_a_diverged_cell_counts_as_chance_or_is_left_out():
    doc = made(one_head=["diverged", 0.9])
    assert chance_score(doc) == 10
    assert cell_scores(doc)[frozenset({"one-head"})] == {0: 10, 1: 90}
    assert len(build_effects(doc).rows) == 3
    other = doc.replace(data="imagefolder:mine")
    assert frozenset({"one-head"}) not in cell_scores(other)
    assert build_effects(other).rows == (), "three of four cells cannot tell effects apart"
    for score, is_higher in (("error", False), ("mean_average_precision", True)):
        written = {"score": score, "unit": "%", "digits": 2, "higher_is_better": is_higher}
        origin = Origin(file="", sha256="", reading="", **written)
        assert chance_score(doc.replace(origin=origin)) is None


def spread(score):
    return [score + each / 1000 + score**2 * each / 500 for each in (0, 2, 1)]


@pytest.mark.parametrize("state", ["failed", "missing", "running"])
def test_no_effect_has_a_verdict_while_a_trial_is_missing(state):
    whole = {name: [*row, *spread(row[0])] for name, row in SCORES.items()}
    doc = make_study(whole, parts=("no-norm", "one-head"), data="cifar10")
    assert all(effect.decided_at for effect in effects_of(doc))
    doc = make_study(whole | {"one-head": [*whole["one-head"][:4], state]}, parts=doc.parts)
    assert {row[-1] for row in build_effects(doc).rows} == {"incomplete"}
    assert not any(effect.decided_at for effect in effects_of(doc))


def test_a_verdict_names_an_earlier_look_alone():
    three = {name: spread(row[0]) for name, row in SCORES.items()}
    doc = make_study(three, parts=("no-norm", "one-head"))
    assert {row[-1] for row in build_effects(doc).rows} == {"exists"}
    later = {name: [*row, 0.5 + 0.4 * (name == "full")] for name, row in three.items()}
    plan = Plan(seeds=3, order=(0, 1, 2, 3))
    doc = make_study(later, parts=doc.parts, plan=plan)
    assert {row[-1] for row in build_effects(doc).rows} == {"exists (at 3 seeds)"}
    notes = "Looks start at 3 seeds"
    assert [notes in str(build_effects(each).notes) for each in (made(), doc)] == [True, False]


def test_effects_wait_for_a_second_seed_and_have_a_figure_before():
    doc = made(**{name: row[:1] for name, row in SCORES.items()})
    assert build_effects(doc).rows == ()
    assert [*figures_of(doc)] == ["effects", "curves"]
    assert [faults(draw) for draw in figures_of(doc).values()] == [[], []]


def test_the_committed_simulation_holds_and_a_short_one_agrees():
    stored = json.loads(factorial.RESULT.read_text())
    assert stored["results"].keys() == factorial.CASES.keys()
    for name, shares in stored["results"].items():
        limit = 0.065 if "two parts" in name else 0.055  # 5 % and three standard errors
        assert max(shares["exists"], shares["interval"]) <= limit, name
    shares = factorial.measure("3 seeds, part x seed terms of 9 times the variance", 20)
    assert shares["interval"] < min(0.15, shares["independent"])


def test_without_its_plugin_a_study_and_its_results_say_what_they_need(here, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "no:factorial")
    monkeypatch.setattr(design, "DESIGNS", plugin.Registry(design.DESIGNS.field))
    with pytest.raises(ConfigError, match=r":4: design: needs the plugin factorial, which is off"):
        write_study(STUDY)
    assert describe_experiment("ablation-factorial").kind == "broken"
    with pytest.raises(ConfigError, match="needs the plugin factorial, which is off"):
        render(made(), "text")
    assert "no-norm+one-head" in render(made(), "csv")
