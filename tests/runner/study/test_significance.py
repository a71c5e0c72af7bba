"""Tests and errors as functions of numbers: by hand, and against scipy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.fabricated_study import make_study
from tests.runner.study.tables import with_images
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.study.images import ImageScores, contrast, cross, join
from vitcli.runner.study.significance import (
    MeanError,
    holm,
    planned_error,
    probability_below,
    sign_flip_p,
)
from vitcli.runner.study.statistics import compare


def close(value):
    return pytest.approx(value, abs=1e-6)


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


@pytest.mark.parametrize(
    ("seeds", "images", "level"), [(8, 0.0, 0.0438), (3, 0.0, 0.009), (8, 0.35, 0.0087)]
)
def test_a_t_test_finds_the_detectable_difference_with_its_power(seeds, images, level):
    error = MeanError(
        mean=0.0,
        variance=1 / seeds + images**2,
        seed_share=(1 / seeds) / (1 / seeds + images**2),
        seed_freedom=seeds - 1,
    )
    random = np.random.default_rng(1)
    size, draws = error.detectable(level), 40_000
    means = size + random.normal(0, 1 / seeds**0.5, draws) + random.normal(0, images, draws)
    variances = random.chisquare(seeds - 1, draws) / (seeds - 1) / seeds
    p = level / 2
    t, z = stats.t.isf(p, seeds - 1), stats.norm.isf(p)
    total = variances + images**2
    limits = (variances * t + images**2 * z) / total**0.5
    assert np.mean(means > limits) == pytest.approx(0.8, abs=0.02)
    assert planned_error(8, 1, None, has_test=True).detectable(0.05) == pytest.approx(
        1.1557, abs=1e-3
    )  # d of a paired t test with n = 8, alpha 0.05, power 0.8 (G*Power: 1.1557)


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
    assert {seed: scores.tolist() for seed, scores in known.by_seed.items()} == {
        0: [100, 0],
        1: [100, 0],
    }
    for other in (PerImage(good, labels + 1), PerImage(good[:1], labels[:1]), None):
        assert join({0: PerImage(good, labels), 1: other}, ACCURACY).by_seed == {}


def test_a_contrast_names_the_lost_images_and_the_classes():
    labels = np.array([0, 0, 1, 1])
    base = ImageScores({0: np.array([100.0, 100, 100, 0]), 1: np.array([100.0, 100, 0, 0])}, labels)
    ours = ImageScores({0: np.array([0.0, 100, 100, 100]), 1: np.array([0.0, 0, 0, 100])}, labels)
    found = contrast(ours, base, ACCURACY)
    assert found is not None
    assert (found.only_baseline, found.only_variant) == (1, 1)
    assert found.examples == (0, 1)
    assert found.by_class == (-75.0, 50.0)
    assert found.crossed.mean == -12.5
    assert contrast(ours, ImageScores(base.by_seed, labels[::-1]), ACCURACY) is None
    assert contrast(ImageScores({0: ours.by_seed[0]}, labels), base, ACCURACY) is None


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
