"""Tests, intervals and probabilities for the scores of seeds: functions of numbers alone."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

ALPHA = 0.05
"""Probability that a study ever calls a difference better or worse if there is none."""
POWER = 0.8
"""Probability with which a difference of the smallest detectable size is found."""
RESAMPLES = 99_999
"""Number of random sign flips, if there are more than that many sign patterns."""
MAX_EXACT_PAIRS = 16
"""Largest number of pairs with an exact test: 2^16 <= RESAMPLES < 2^17."""
SIGNS_AT_ONCE = 2_000_000
"""Number of signs that are drawn and used together, so that they need little memory."""


KEPT_PAIRS = 64
"""Largest number of pairs whose random signs are kept, because all rows of a study use them."""


def rounded(value: float | np.floating) -> float:
    """Return a value without the rounding noise of floats.

    The noise would make 84.4 - 93.1 differ from -8.7, and would break ties.
    """
    return round(float(value), 12)


def t_interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """Return mean +- t(1 - alpha / 2, n - 1) sd / sqrt(n) of at least two values.

    The width is zero if all values are equal.
    """
    mean, half = np.mean(values), standard_error(values)
    half *= special.stdtrit(len(values) - 1, 1 - alpha / 2)
    return rounded(mean - half), rounded(mean + half)


def standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def t_tail(distance: float, error: float, freedom: float) -> float:
    if error == 0:
        return float(distance <= 0)
    return float(special.stdtr(freedom, -distance / error))


def shared_freedom(num_rows: int, freedom: float) -> float:
    """Return the degrees of freedom of variances that are pooled over rows with one baseline.

    If all scores vary equally, the differences of two rows correlate by 1/2, because they share the
    baseline, and their variances by 1/4. So k rows count for k / (1 + (k - 1) / 4).
    """
    return freedom / (1 + (num_rows - 1) / 4)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the mean difference.

    If variant and baseline are the same, each pair's sign is a coin toss. The test is exact up to
    MAX_EXACT_PAIRS pairs; for more pairs it draws RESAMPLES sign patterns with a fixed seed.
    """
    count, values = len(differences), np.array(differences)
    values = values / (abs(values).max() or 1.0)  # so that rounding keeps small differences
    is_exact = count <= MAX_EXACT_PAIRS
    observed = abs(round(float(values.mean()), 9))
    drawn = _kept_signs if count <= KEPT_PAIRS else _random_signs
    signs = _all_signs(count) if is_exact else drawn(count)
    extreme = sum(
        int((abs(np.round(part @ values / count, 9)) >= observed).sum()) for part in signs
    )
    return extreme / 2**count if is_exact else (1 + extreme) / (1 + RESAMPLES)


@lru_cache(maxsize=4)
def _all_signs(count: int) -> list[NDArray[np.int8]]:
    signs = np.array([*itertools.product((-1, 1), repeat=count)], np.int8)
    return np.array_split(signs, -(-signs.size // SIGNS_AT_ONCE))


def _random_signs(count: int) -> Iterator[NDArray[np.int8]]:
    """Yield random signs, RESAMPLES rows of ``count`` in all."""
    random, patterns = np.random.default_rng(0), np.array([-1, 1], np.int8)
    for part in np.array_split(np.arange(RESAMPLES), -(-RESAMPLES * count // SIGNS_AT_ONCE)):
        yield random.choice(patterns, (len(part), count))


@lru_cache(maxsize=4)
def _kept_signs(count: int) -> list[NDArray[np.int8]]:
    return [*_random_signs(count)]


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
