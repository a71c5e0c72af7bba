"""Factorial studies: effects by hand, from known effects, and against an analysis of variance."""

import itertools

import numpy as np
import pytest
from scipy import stats

from vitcli.runner.study.combinations import cells
from vitcli.runner.study.factorial import effects

PARTS = ("a", "b", "c")


def scores(main, pairs, *, seeds=3, noise=0.0, seed=0):
    """Return scores with these effects: part -> points, pair -> points."""
    random = np.random.default_rng(seed)
    blocks = random.normal(0, 5 * noise, seeds)
    found = {}
    for cell in cells(PARTS):
        sign = {part: 0.5 if part in cell else -0.5 for part in PARTS}
        value = 50 + sum(points * sign[part] for part, points in main.items())
        value += sum(points * sign[a] * sign[b] for (a, b), points in pairs.items())
        found[cell] = {k: value + blocks[k] + random.normal(0, noise) for k in range(seeds)}
    return found


def values(found):
    return {"".join(each.parts): each.value for each in found}


def test_cells_are_all_combinations():
    assert ["".join(sorted(cell)) for cell in cells(PARTS)] == [
        "", "a", "b", "c", "ab", "ac", "bc", "abc"
    ]  # fmt: skip
    assert len(cells("abcde")) == 32


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


def test_the_error_is_that_of_a_two_way_analysis():
    made = scores({"a": 1.0}, {}, noise=1.0)
    table = np.array([list(row.values()) for row in made.values()])  # 8 cells, 3 seeds
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    error = (rest**2).sum() / (7 * 2)
    by_part = {"".join(each.parts): each for each in effects(PARTS, made)}
    half = stats.t.ppf(0.975, 14) * (error * 4 / 24) ** 0.5
    assert (by_part["a"].high - by_part["a"].low) / 2 == pytest.approx(half)
    assert (by_part["ab"].high - by_part["ab"].low) / 2 == pytest.approx(2 * half)
    assert by_part["a"].p == pytest.approx(
        2 * stats.t.sf(abs(by_part["a"].value) / (error * 4 / 24) ** 0.5, 14)
    )
    assert by_part["a"].p_holm >= by_part["a"].p


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


def test_intervals_hold_the_truth_as_often_as_they_say():
    held = []
    for seed in range(400):
        found = effects(PARTS, scores({"a": 2.0}, {}, noise=1.0, seeds=2, seed=seed))
        truth = dict.fromkeys(
            ("".join(p) for n in (1, 2) for p in itertools.combinations(PARTS, n)), 0
        )
        truth["a"] = 2.0
        held += [each.low <= truth["".join(each.parts)] <= each.high for each in found]
    assert 0.93 <= np.mean(held) <= 0.97
