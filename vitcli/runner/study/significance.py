"""Tests, intervals and errors of the scores of seeds: functions of numbers alone."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitcli.runner.study.result import MIN_PAIRS, Crossed

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
TINY = 1e-12
"""Smallest p of a mean whose error has two sources that is computed."""
BISECTIONS = 52
"""Each halves the interval of a p, so that all digits of a double are right."""


def rounded(value: float | np.floating) -> float:
    """Return a value without the rounding noise of floats, which would break ties."""
    return round(float(value), 12)


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
    """Return the spread of paired differences over that of unpaired ones; None if both are 0."""
    apart = float(np.var(ours, ddof=1) + np.var(theirs, ddof=1)) ** 0.5
    return rounded(np.std(np.subtract(ours, theirs), ddof=1) / apart) if apart else None


@dataclass(frozen=True, kw_only=True)
class SeedVariance:
    """Variance of the paired differences of single seeds, and its degrees of freedom."""

    value: float
    freedom: float


def shared_freedom(num_rows: int, freedom: float) -> float:
    """Return the degrees of freedom of variances that are pooled over rows with one baseline.

    If all scores vary equally, the differences of two rows correlate by 1/2, because they share the
    baseline, and their variances by 1/4. So k rows count for k / (1 + (k - 1) / 4).
    """
    return freedom / (1 + (num_rows - 1) / 4)


def pool_seed_variance(rows: Sequence[Sequence[float]]) -> SeedVariance | None:
    """Return the seed variance pooled over the rows with enough pairs; None for one row."""
    counted = [row for row in rows if len(row) >= MIN_PAIRS]
    if len(counted) < 2:
        return None
    weights = [len(row) - 1 for row in counted]
    value = np.average([np.var(row, ddof=1) for row in counted], weights=weights)
    return SeedVariance(value=rounded(value), freedom=shared_freedom(len(counted), sum(weights)))


@dataclass(frozen=True, kw_only=True)
class MeanError:
    """The variance of a mean difference, for new seeds and, if known, new test images."""

    mean: float
    variance: float
    seed_share: float
    """Share of the variance that comes from the seeds, at most 1."""
    seed_freedom: float
    image_freedom: float = np.inf

    @classmethod
    def of_seeds(
        cls,
        differences: Sequence[float],
        pooled: SeedVariance | None = None,
        folds: int | None = None,
    ) -> Self:
        """Return the error over seeds alone. The larger variance counts, if one is pooled.

        With folds, each seed has other test images, but seeds share training images. So the
        variance is s^2 (1 / n + test images / training images) instead of s^2 / n.
        Source: Nadeau and Bengio 2003, https://doi.org/10.1023/A:1024068626366, section 3;
        of repeated folds: Bouckaert and Frank 2004, https://doi.org/10.1007/978-3-540-24775-3_3
        """
        own = SeedVariance(value=float(np.var(differences, ddof=1)), freedom=len(differences) - 1)
        used = larger_variance(own, pooled)
        return cls(
            mean=float(np.mean(differences)),
            variance=used.value / len(differences) + (used.value / (folds - 1) if folds else 0.0),
            seed_share=1.0,
            seed_freedom=used.freedom,
        )

    @classmethod
    def of_images(cls, crossed: Crossed, pooled: SeedVariance | None = None) -> Self:
        """Return the error over seeds and images. The larger seed variance counts."""
        own = SeedVariance(
            value=crossed.ms_seeds / crossed.num_images, freedom=crossed.num_seeds - 1
        )
        used = larger_variance(own, pooled)
        counted = crossed.replace(ms_seeds=used.value * crossed.num_images)
        of_seeds = used.value / crossed.num_seeds
        return cls(
            mean=counted.mean,
            variance=counted.variance,
            seed_share=min(1.0, of_seeds / counted.variance) if counted.variance else 1.0,
            seed_freedom=used.freedom,
            image_freedom=crossed.num_images - 1,
        )

    def limit(self, p: float) -> float:
        """Return the quantile with p above it: the mean of two t quantiles.

        Those of the seeds and of the images are weighted by their shares of the variance. With few
        seeds, Satterthwaite's intervals are too narrow at high levels; these are not.
        Source: Cochran and Cox 1950, Experimental Designs, section 4.14.
        """
        of_seeds = -float(special.stdtrit(self.seed_freedom, p))
        if self.seed_share == 1:
            return of_seeds
        of_images = -float(special.stdtrit(self.image_freedom, p))
        return self.seed_share * of_seeds + (1 - self.seed_share) * of_images

    def interval(self, alpha: float) -> tuple[float, float]:
        half = self.limit(alpha / 2) * self.variance**0.5
        return self.mean - half, self.mean + half

    def detectable(self, level: float) -> float:
        """Return the difference that is found with probability POWER, by Satterthwaite."""
        share = self.seed_share
        below = share**2 / self.seed_freedom + (1 - share) ** 2 / self.image_freedom
        found = special.nctdtrinc(1 / below, 1 - POWER, self.limit(level / 2))
        return rounded(found * self.variance**0.5)

    def tail(self, distance: float) -> float:
        """Return the one-sided p of a mean that lies ``distance`` beyond the tested value."""
        if self.variance == 0:
            return float(distance <= 0)
        if distance < 0:
            return 1 - self.tail(-distance)
        size = distance / self.variance**0.5
        if self.seed_share == 1:
            return float(special.stdtr(self.seed_freedom, -size))
        if size > self.limit(TINY):
            return TINY
        low, high = TINY, 0.5
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.limit(middle) > size else (low, middle)
        return high


def larger_variance(own: SeedVariance, pooled: SeedVariance | None) -> SeedVariance:
    """Return the larger variance, with its own degrees of freedom.

    Rows may vary differently. So a row that varies more than the pool keeps its own variance and
    its few degrees of freedom: the other rows say nothing about it.
    """
    return own if pooled is None or own.value > pooled.value else pooled


def planned_error(
    seeds: int, num_tests: int, folds: int | None, *, has_test: bool
) -> MeanError | None:
    """Return the error that decides for differences of variance 1; None if no error decides."""
    freedom = seeds - 1.0
    if not has_test:
        if num_tests < 2:
            return None
        freedom = shared_freedom(num_tests, num_tests * freedom)
    variance = 1 / seeds + (1 / (folds - 1) if folds else 0.0)  # as in MeanError.of_seeds
    return MeanError(mean=0.0, variance=variance, seed_share=1.0, seed_freedom=freedom)
