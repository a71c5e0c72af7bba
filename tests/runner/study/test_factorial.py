"""Factorial studies: effects by hand, from known effects, and with unequal variances."""

import numpy as np
import pytest

from vitcli.runner.study.combinations import cells
from vitcli.runner.study.factorial import alone, effects, higher_interactions

PARTS = ("a", "b", "c")


def scores(main, pairs, *, seeds=3, noise=0.0, seed=0, wild=1.0):
    """Return scores with these effects: part -> points, pair -> points.

    The noise of the cell that changes every part is ``wild`` times that of the others.
    """
    random = np.random.default_rng(seed)
    blocks = random.normal(0, 5 * noise, seeds)
    found = {}
    for cell in cells(PARTS):
        sign = {part: 0.5 if part in cell else -0.5 for part in PARTS}
        value = 50 + sum(points * sign[part] for part, points in main.items())
        value += sum(points * sign[a] * sign[b] for (a, b), points in pairs.items())
        spread = noise * (wild if len(cell) == len(PARTS) else 1)
        found[cell] = {k: value + blocks[k] + random.normal(0, spread) for k in range(seeds)}
    return found


def values(found):
    return {"".join(each.parts): each.value for each in found}


def test_effects_by_hand():
    # a alone costs 4, b alone 2, both 10: the effect of a is -4 without b and -8 with b.
    y = {"": [50, 52], "a": [46, 48], "b": [48, 50], "ab": [40, 42]}
    found = effects("ab", {frozenset(cell): dict(enumerate(row)) for cell, row in y.items()})
    assert values(found) == {"a": -6, "b": -4, "ab": -4}
    assert all(each.low == each.value == each.high for each in found)  # the seeds agree exactly


def test_known_effects_are_found():
    main, pairs = {"a": -10.0, "b": 3.0, "c": 0.0}, {("a", "b"): 5.0, ("b", "c"): -1.0}
    exact = values(effects(PARTS, scores(main, pairs)))
    assert exact == pytest.approx({"a": -10, "b": 3, "c": 0, "ab": 5, "ac": 0, "bc": -1}, abs=1e-9)


def test_a_wild_cell_leaves_few_degrees_of_freedom():
    calm, wild = (effects(PARTS, scores({}, {}, noise=1.0, seeds=4, wild=w))[0] for w in (1, 20))
    assert wild.freedom < 6 < 12 < calm.freedom


def test_an_interaction_of_three_parts_is_found_by_its_own_test():
    made = scores({"a": 3.0}, {("a", "b"): 2.0}, noise=0.1)
    none = higher_interactions(PARTS, made)
    for cell in made:
        sign = (-1) ** len(cell)
        made[cell] = {seed: y + sign for seed, y in made[cell].items()}
    found = higher_interactions(PARTS, made)
    assert none.p > 0.05
    assert found.p < 0.001
    assert found.freedoms[0] == pytest.approx(1)  # 8 cells, mean, 3 parts and 3 pairs: one is left


def test_two_parts_have_no_higher_interaction():
    y = {cell: {0: 1.0, 1: 2.5 if cell else 2.0} for cell in cells("ab")}
    assert higher_interactions("ab", y) is None


def test_a_trial_without_a_second_one_is_left_out_and_counted():
    made = scores({"a": -10.0}, {}, seeds=2, noise=0.1)
    before = effects(PARTS, made)
    made[frozenset("a")][2] = 1000.0  # the first trial of a third seed
    assert alone(made) == 1
    assert values(effects(PARTS, made)) == pytest.approx(values(before))


def test_a_missing_score_changes_no_effect_that_is_exact():
    made = scores({"a": -10.0}, {("a", "c"): 2.0})
    del made[frozenset("ab")][1]
    assert values(effects(PARTS, made))["ac"] == pytest.approx(2.0)


def test_effects_need_a_second_seed_and_every_level():
    one = scores({"a": 1.0}, {}, seeds=1)
    assert effects(PARTS, one) == ()
    made = scores({"a": 1.0}, {})
    without = {cell: row for cell, row in made.items() if "a" not in cell}
    assert effects(PARTS, without) == ()
    assert effects(PARTS, {}) == ()
