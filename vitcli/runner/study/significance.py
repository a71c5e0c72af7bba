"""Tests, intervals and probabilities for the scores of seeds: functions of numbers alone."""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

ALPHA = 0.05
"""Intervals have level 1 - ALPHA. A p-value is given only if it could be as small as ALPHA."""
POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""
RESAMPLES = 99_999
"""Number of random sign flips, if there are more than that many sign patterns."""
MAX_EXACT_PAIRS = 16
"""Largest number of pairs with an exact test: 2^16 <= RESAMPLES < 2^17."""
SIGN_PARTS = 100
"""Parts in which random signs are used, so that they need little memory."""
MIN_PAIRS = 3
"""Fewest pairs with an interval. Two give intervals that hardly mean anything."""
DRAWS = 10_000
"""Number of random studies behind the smallest detectable difference."""
ALWAYS = -1e9
"""A threshold that every difference passes."""
MAX_POWER_PAIRS = 12
"""Largest number of pairs whose sign patterns are all used for it; for more, some are drawn."""
AGREEING_PAIRS = 20
"""From here on, sign flips need at most 1.2 % more than the t test, and are left out."""
POWER_PATTERNS = 4000
"""Number of drawn patterns. With too few, their share at a small level is coarse."""
POWER_PARTS = 20
"""Parts in which the random studies meet the patterns, so that they need little memory."""
MAX_POWER_ROWS = 16
"""Largest number of rows that are drawn to pool their variances."""


def rounded(value: float | np.floating) -> float:
    """Return a value without the rounding noise of floats.

    The noise would make 84.4 - 93.1 differ from -8.7, and would break ties.
    """
    return round(float(value), 9)


def seeds_needed(num_tests: int) -> int:
    """Return the fewest pairs with which a p-value can be significant.

    The smallest possible p, 2 / 2^pairs, must survive Holm's first step.
    """
    return next(n for n in itertools.count(2) if num_tests * 2 / 2**n <= ALPHA)


def t_interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """Return mean +- t(1 - alpha / 2, n - 1) sd / sqrt(n) of at least two values.

    The width is zero if all values are equal.
    """
    mean, half = np.mean(values), standard_error(values)
    half *= special.stdtrit(len(values) - 1, 1 - alpha / 2)
    return rounded(mean - half), rounded(mean + half)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def t_tail(distance: float, error: float, freedom: float) -> float:
    """Return the one-sided p of a t test, for a mean ``distance`` away from the tested value."""
    if error == 0:
        return float(distance <= 0)
    return float(special.stdtr(freedom, -distance / error))


def detectable(
    spread: float, pairs: int, num_tests: int, *, images_error: float = 0.0
) -> float | None:
    """Return the difference that is found with probability POWER at level ALPHA / num_tests.

    With enough pairs for a p-value, it is found if the joint interval excludes 0 and the sign flips
    agree; with fewer, if the joint interval with the pooled seed variance does. These conditions
    hold above a threshold, whose distribution is drawn with a fixed random seed. A difference of
    the wrong sign is not counted. None: there is neither a p-value nor another row to pool with.

    Args:
        spread: Standard deviation of the paired differences of seeds, on the same images.
        pairs: Number of seeds.
        num_tests: Number of comparisons; the level is that of Holm's first step.
        images_error: Standard error of the mean difference from the choice of many test images.
    """
    if pairs < seeds_needed(num_tests) and num_tests < 2:
        return None
    drawn = _standard_draws(pairs, num_tests)
    of_seeds = spread**2 * drawn.variances / pairs
    squares = of_seeds + images_error**2
    if not squares.any():
        return 0.0
    p = 1 - ALPHA / num_tests / 2
    t, z = special.stdtrit(drawn.freedom, p), special.ndtri(p)
    limits = (of_seeds * t + images_error**2 * z) / squares**0.5  # as in MeanError.limit
    moved = images_error * drawn.of_images
    needed = np.maximum(limits - spread * drawn.means, spread * drawn.flips) - moved
    return float(np.quantile(needed, POWER))


def detectable_by_t(error: float, freedom: float, num_tests: int) -> float:
    """Return the difference that a t test finds with probability POWER at level ALPHA / num_tests.

    Args:
        error: Standard error of the mean difference.
        freedom: Degrees of freedom of the error.
        num_tests: Number of comparisons.
    """
    limit = special.stdtrit(freedom, 1 - ALPHA / num_tests / 2)
    return rounded(error * special.nctdtrinc(freedom, 1 - POWER, limit))


Numbers = NDArray[np.float64]


class StandardDraws(NamedTuple):
    """Random studies whose paired differences are standard normal numbers, (DRAWS,)."""

    means: Numbers
    variances: Numbers
    """The seed variances that decide: own ones, or the larger of own and pooled one."""
    freedom: Numbers
    of_images: Numbers
    """Standard normal errors of the test images."""
    flips: Numbers
    """Raised by more than this, the numbers pass the sign-flip test; ALWAYS if it is not made."""


@lru_cache(maxsize=32)
def _standard_draws(pairs: int, num_tests: int) -> StandardDraws:
    random = np.random.default_rng(0)
    of_images = random.standard_normal(DRAWS)
    if pairs >= seeds_needed(num_tests):
        numbers = random.standard_normal((DRAWS, pairs))
        variances, flips = numbers.var(1, ddof=1), np.full(DRAWS, ALWAYS)
        if pairs < AGREEING_PAIRS:
            flips = _flip_thresholds(numbers, num_tests, random)
        freedom = np.full(DRAWS, pairs - 1.0)
        return StandardDraws(numbers.mean(1), variances, freedom, of_images, flips)
    num_rows = min(num_tests, MAX_POWER_ROWS)
    scores = random.standard_normal((DRAWS, num_rows + 1, pairs))
    rows = (scores[:, 1:] - scores[:, :1]) / 2**0.5
    variances = rows.var(2, ddof=1)
    own, pooled = variances[:, 0], variances.mean(1)  # as in mean_error.larger
    shared = shared_freedom(num_rows, num_rows * (pairs - 1))
    freedom = np.where(own > pooled, pairs - 1.0, shared)
    flips = np.full(DRAWS, ALWAYS)
    return StandardDraws(rows[:, 0].mean(1), np.maximum(own, pooled), freedom, of_images, flips)


def _flip_thresholds(numbers: Numbers, num_tests: int, random: np.random.Generator) -> Numbers:
    """Return by how much each row of numbers must be raised to pass the sign-flip test."""
    # To flip some signs gives a smaller sum if the mean of those numbers, and that of the others,
    # is above 0. A share ALPHA / num_tests of the patterns, with that of no flip, may not.
    pairs = numbers.shape[1]
    if pairs <= MAX_POWER_PAIRS:  # all patterns, but not also those with the opposite signs
        patterns = np.array([*itertools.product((0, 1), repeat=pairs - 1)][1:], np.float32)
        patterns = np.pad(patterns, ((0, 0), (1, 0)))
        allowed = int((len(patterns) + 1) * ALPHA / num_tests + 1e-9)
    else:
        patterns = random.integers(0, 2, (POWER_PATTERNS, pairs)).astype(np.float32)
        patterns = patterns[np.ptp(patterns, axis=1) > 0]
        allowed = 1 + round(len(patterns) * ALPHA / num_tests)
    counts = patterns.sum(1)
    found = []
    for part in np.array_split(numbers.astype(np.float32), POWER_PARTS):
        flipped = part @ patterns.T
        thresholds = flipped / -counts
        flipped -= part.sum(1, keepdims=True)
        flipped /= pairs - counts
        np.maximum(thresholds, flipped, out=thresholds)
        thresholds.partition(-allowed, axis=1)
        found.append(thresholds[:, -allowed].copy())
    return np.concatenate(found).astype(np.float64)


def shared_freedom(num_rows: int, freedom: float) -> float:
    """Return the degrees of freedom of variances that are pooled over rows with one baseline.

    If all scores vary equally, the differences of two rows correlate by 1/2, because they share the
    baseline, and their variances by 1/4. So k rows count for k / (1 + (k - 1) / 4).

    Args:
        num_rows: Number of rows.
        freedom: Sum of their degrees of freedom.
    """
    return freedom / (1 + (num_rows - 1) / 4)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the mean difference.

    If variant and baseline are the same, each pair's sign is a coin toss. The test is exact up to
    MAX_EXACT_PAIRS pairs; for more pairs it draws RESAMPLES sign patterns with a fixed seed.
    """
    count, values = len(differences), np.array(differences)
    is_exact = count <= MAX_EXACT_PAIRS
    signs = _all_signs(count) if is_exact else _random_signs(count)
    observed = abs(round(float(values.mean()), 9))
    means = [np.round(part @ values / count, 9) for part in np.array_split(signs, SIGN_PARTS)]
    extreme = sum(int((abs(each) >= observed).sum()) for each in means)
    return extreme / len(signs) if is_exact else (1 + extreme) / (1 + RESAMPLES)


@lru_cache(maxsize=1)
def _all_signs(count: int) -> NDArray[np.int8]:
    return np.array([*itertools.product((-1, 1), repeat=count)], np.int8)


@lru_cache(maxsize=1)
def _random_signs(count: int) -> NDArray[np.int8]:
    """Return random signs, (RESAMPLES, count)."""
    return np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (RESAMPLES, count))


def holm(p_values: Sequence[float | None], m: int) -> list[float | None]:
    """Return step-down adjusted p-values of m tests; a missing p counts as 1 and stays missing.

    The i-th smallest (from 0) becomes max over j <= i of min(1, (m - j) p_j).
    Reference: Holm 1979, https://www.jstor.org/stable/4615733
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (m - rank) * p))
        adjusted[i] = largest
    return adjusted


def probability_below(
    ours: Sequence[float], theirs: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """Return the share of seeds with which ours is below theirs, and its 95 % interval.

    ``ours[i]`` and ``theirs[i]`` share a seed; a tie counts one half. It estimates P(A > B) of two
    trainings that share their sources of variation: Bouthillier et al. 2021,
    https://arxiv.org/abs/2103.03098, section 4. Their bootstrap has no width if all seeds agree, so
    the interval is the exact one of a binomial share: Clopper and Pearson 1934,
    https://doi.org/10.1093/biomet/26.4.404
    """
    a, b = np.array(ours), np.array(theirs)
    count, below = len(a), float((a < b).sum() + 0.5 * (a == b).sum())
    low = special.betaincinv(below, count - below + 1, ALPHA / 2) if below else 0.0
    high = special.betaincinv(below + 1, count - below, 1 - ALPHA / 2) if below < count else 1.0
    return rounded(below / count), (rounded(low), rounded(high))


def pairing_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the spread of the paired differences over that of unpaired ones.

    Below 1, pairing makes intervals narrower. None if nothing varies.
    """
    apart = float(np.var(ours, ddof=1) + np.var(theirs, ddof=1)) ** 0.5
    return rounded(np.std(np.subtract(ours, theirs), ddof=1) / apart) if apart else None
