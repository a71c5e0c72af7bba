"""The rule of `vitcli decide`: its limits, its errors over all looks, and when it stops."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import special

from vitcli.plugins.decide.rule import FIRST, decide, levels
from vitcli.runner.study.result import Contrast, Crossed
from vitcli.runner.study.significance import SeedVariance

LIMITS = {
    16: [8.16, 5.58, 4.54, 3.99, 3.64, 3.40, 3.22, 3.08, 2.97, 2.87, 2.79, 2.73, 2.66],
    24: [9.62, 6.41, 5.12],
}
NEVER_GIVEN_UP = {"margin": 1e-9}
CLEAR = [1.0, 1.1, 0.9, 1.05, 0.95]


def images(variance: float) -> Contrast:
    """Return differences on test images that give the mean difference this variance."""
    about: dict[str, Any] = {"num_images": 1, "mean": 1.0, "ms_seeds": 0.0, "ms_residual": 0.0}
    seeds = range(4, 17)
    looks = tuple(Crossed(num_seeds=n, ms_images=n * variance, **about) for n in seeds)
    return Contrast(crossed=looks[-1], looks=looks)


@pytest.mark.parametrize("most", LIMITS)
def test_the_limits_are_those_of_a_simulation(most):
    """Drawn 4,000,000 times, rounded."""
    found = [
        -special.stdtrit(pairs - 1, levels(most, 0.05).level(pairs) / 2)
        for pairs in range(FIRST, FIRST + len(LIMITS[most]))
    ]
    assert found == pytest.approx(LIMITS[most], rel=0.005)


@pytest.mark.parametrize(
    ("effect", "options", "least", "mean_pairs"),
    [
        (0.0, NEVER_GIVEN_UP, {"not decided": 0.91}, (15.3, 16)),
        (0.0, {}, {"unlikely to be better": 0.9}, (5.9, 6.9)),
        (1.0, NEVER_GIVEN_UP, {"better": 0.86}, (9.5, 10.9)),
        (2.0, {}, {"better": 0.98}, (5.6, 6.4)),
        (-2.0, NEVER_GIVEN_UP, {"worse": 0.98}, (5.6, 6.4)),
        (0.0, {"margin": 1.0}, {"equivalent": 0.85}, (10, 11.5)),
        (1.0, {"floor": SeedVariance(value=1.0, freedom=14)}, {"better": 0.82}, (9.3, 10.6)),
    ],
)
def test_the_shares_of_verdicts(effect, options, least, mean_pairs):
    random = np.random.default_rng(0)
    made = [decide(random.normal(effect, 1, 16), max_seeds=16, **options) for _ in range(300)]
    shares = Counter(decision.verdict for decision in made)
    (verdict, share) = next(iter(least.items()))
    assert shares[verdict] / 300 >= share
    assert mean_pairs[0] <= np.mean([decision.pairs for decision in made]) <= mean_pairs[1]
    if not effect:
        assert (shares["better"] + shares["worse"]) / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize(
    ("differences", "options", "verdict", "pairs"),
    [
        ([], {}, "more pairs", 0),
        ([5.0, 5.1, 4.9], {}, "more pairs", 3),
        ([-1.0, -1.5, -0.4, 0.2, -1.1], {}, "unlikely to be better", 5),
        ([-1.0, -1.5, -0.4, 0.2, -1.1], NEVER_GIVEN_UP, "more pairs", 5),
        ([0.1, -0.1, 0.05, -0.05, 0.02], {"margin": 1.0}, "equivalent", 4),
        ([*CLEAR, -9.0], {}, "better", 4),  # a verdict stays
        (CLEAR, {"contrast": images(1.0)}, "limited by the images", 4),
        (CLEAR, {"contrast": images(1e-6)}, "better", 4),
        ([0.0] * 4, {}, "more pairs", 4),
        ([0.0] * 9, {}, "unlikely to be better", 5),
        ([0.0] * 9, NEVER_GIVEN_UP, "more pairs", 9),
        ([0.0] * 16, {"margin": 1.0}, "not decided", 16),
        ([1.0] * 9, {}, "more pairs", 9),
        ([1.0] * 16, {}, "not decided", 16),
    ],
)
def test_single_comparisons(differences, options, verdict, pairs):
    """Equal differences have no interval."""
    found = decide(differences, max_seeds=16, **options)
    assert (found.verdict, found.pairs) == (verdict, pairs)
    assert (found.interval is None) == (len({*differences[:pairs]}) < 2 or pairs < FIRST)


def test_a_larger_own_variance_than_that_of_the_floor_counts():
    quiet = SeedVariance(value=1e-4, freedom=30)
    noisy = [3.0, 0.1, -0.4, 2.0, 1.4]
    found = decide(noisy, floor=quiet)
    other = decide(noisy, floor=SeedVariance(value=1e-4, freedom=31))
    assert found.interval == pytest.approx(other.interval, rel=0.2)
    assert found.verdict == "more pairs"


def test_with_a_floor_four_fifths_of_alpha_are_spent():
    variance = float(np.var(CLEAR[:4], ddof=1))
    low, high = decide(CLEAR[:4], floor=SeedVariance(value=variance, freedom=14)).interval
    limit = -special.stdtrit(17, levels(16, 0.04).level(4) / 2)
    assert (high - low) / 2 == pytest.approx(limit * (variance / 4) ** 0.5)


def test_the_interval_never_becomes_wider():
    differences = [0.5, 0.6, -0.1, 0.4, 9.0]
    looks = [
        decide(differences[:pairs], max_seeds=16, **NEVER_GIVEN_UP).interval for pairs in (4, 5)
    ]
    (low, high), (later_low, later_high) = (look for look in looks if look)
    assert low <= later_low < later_high <= high
