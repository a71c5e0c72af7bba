"""Tests and probabilities as functions of numbers: by hand and against scipy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from vitcli.runner.study.mean_error import MeanError, pool_seed_variance
from vitcli.runner.study.significance import (
    detectable,
    holm,
    pairing_ratio,
    planned_detectable,
    probability_below,
    sign_flip_p,
    t_tail,
)


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_sign_flips_by_hand():
    # Of 2^3 sign patterns of (1, 2, 4) only + + + is as large as 7, and only - - - as small.
    assert sign_flip_p([1, 2, 4]) == 2 / 8
    # (-1, 2, 4) sums to 5: reached by + + + and - + +, and mirrored.
    assert sign_flip_p([-1, 2, 4]) == 4 / 8


def test_rounding_noise_breaks_no_tie():
    # Their sum is 0, but not in floats: some of the flips that also give 0 would seem smaller.
    assert sign_flip_p([-0.2, -0.15, 0.2, 0.1, 0.0, -0.15, 0.2]) == 1.0
    assert sign_flip_p([0.0] * 8) == 1.0


def test_more_than_16_pairs_are_drawn_with_a_fixed_seed():
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


def test_a_tail_is_scipys():
    values = [0.3, -0.1, 0.5, 0.2]
    mean, error = np.mean(values), stats.sem(values)
    for popmean in (-1.0, 0.1, 1.0):
        expected = stats.ttest_1samp(values, popmean, alternative="greater").pvalue
        assert t_tail(mean - popmean, error, 3) == close(expected)
    assert (t_tail(1, 0, 3), t_tail(0, 0, 3)) == (0.0, 1.0)


def found_by_pooled_interval(scores: np.ndarray, m: int) -> bool:
    """Return whether the first row's interval excludes 0 from below; scores (m + 1, seeds)."""
    rows = [list(row - scores[0]) for row in scores[1:]]
    return MeanError.of_seeds(rows[0], pool_seed_variance(rows)).interval(0.05 / m)[0] > 0


@pytest.mark.parametrize(("pairs", "m"), [(3, 2), (5, 5)])
def test_too_few_seeds_for_a_p_detect_by_the_pooled_interval(pairs, m):
    size = planned_detectable(pairs, m)
    scores = np.random.default_rng(1).normal(0, 1 / 2**0.5, (400, m + 1, pairs))
    scores[:, 1] += size
    assert np.mean([found_by_pooled_interval(each, m) for each in scores]) == pytest.approx(
        0.8, abs=0.06
    )
    assert detectable(2.0, pairs, m) == pytest.approx(2 * size)
    assert detectable(0.0, pairs, m) == 0.0
    # Without a spread over seeds, the test images alone decide.
    shift = stats.norm.ppf(1 - 0.05 / m / 2) + stats.norm.ppf(0.8)
    assert detectable(0.0, pairs, m, images_error=3.0) == pytest.approx(3 * shift, rel=0.01)


def test_too_few_seeds_and_one_variant_detect_nothing():
    assert planned_detectable(5, 1) is None
    assert planned_detectable(6, 1) is not None


def found_by_both_tests(numbers: np.ndarray, m: int) -> np.ndarray:
    """Return which rows of numbers (studies, pairs) pass; the sign flips are all of them."""
    half = np.array([*itertools.product((1, -1), repeat=numbers.shape[1] - 1)], np.float32)
    signs = np.pad(half, ((0, 0), (1, 0)), constant_values=1)
    sums = np.abs(numbers.astype(np.float32) @ signs.T)
    flips = np.mean(sums >= sums[:, :1] - 1e-5, axis=1)
    return np.maximum(stats.ttest_1samp(numbers, 0, axis=1).pvalue, flips) <= 0.05 / m


@pytest.mark.parametrize(("pairs", "m"), [(6, 1), (8, 5), (14, 20)])
def test_the_detectable_difference_passes_both_tests_of_p_with_its_power(pairs, m):
    # With 8 seeds and 5 comparisons, only 8 differences of one sign give a p below 0.01.
    numbers = np.random.default_rng(1).normal(planned_detectable(pairs, m), 1, (600, pairs))
    assert found_by_both_tests(numbers, m).mean() == pytest.approx(0.8, abs=0.05)


def test_the_probability_to_be_below_counts_pairs_of_one_seed():
    # 1 < 2, 3 > 2 and 4 = 4, which counts one half. Of all nine pairs, 4.5 would be below.
    below, (low, high) = probability_below([1, 3, 4, 1], [2, 2, 4, 2])
    assert below == 2.5 / 4
    assert 0 < low < below < high < 1
    # The order of the seeds matters: 1 < 2, 2 < 3, 3 > 1 of the same scores.
    assert probability_below([1, 2, 3], [2, 3, 1])[0] == close(2 / 3)
    assert probability_below([1, 2, 3], [1, 2, 3])[0] == 0.5


@pytest.mark.parametrize("below", [0, 3, 8])
def test_the_interval_of_a_probability_is_scipys(below):
    found = probability_below([0] * below + [2] * (8 - below), [1] * 8)
    exact = stats.binomtest(below, 8).proportion_ci(0.95, "exact")
    assert found == (below / 8, (close(exact.low), close(exact.high)))


def test_what_pairing_bought():
    assert pairing_ratio([1, 2, 3], [2, 3, 4]) == 0.0
    # Differences -2, 0, 2 have sd 2; apart it would be sqrt(1 + 1).
    assert pairing_ratio([1, 2, 3], [3, 2, 1]) == close(2 / 2**0.5)
    assert pairing_ratio([1, 1], [1, 1]) is None
