"""The error of a mean difference, and the seed variance that several rows share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from vitcli.runner.study.crossed import Crossed
from vitcli.runner.study.result import MIN_PAIRS
from vitcli.runner.study.significance import POWER, rounded, shared_freedom

TINY = 1e-12
"""Smallest p that is computed."""
BISECTIONS = 52
"""Each halves the interval of a p, so that all digits of a double are right."""


@dataclass(frozen=True, kw_only=True)
class SeedVariance:
    """Variance of the paired differences of single seeds, and its degrees of freedom."""

    value: float
    freedom: float


def pool_seed_variance(rows: Sequence[Sequence[float]]) -> SeedVariance | None:
    """Return the seed variance pooled over rows of differences from one baseline.

    Args:
        rows: Paired differences of each row. Rows of fewer than MIN_PAIRS pairs do not count.

    Returns:
        None for fewer than two rows.
    """
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
        used = larger(own, pooled)
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
        used = larger(own, pooled)
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
        """Return the interval of the mean at level 1 - alpha."""
        half = self.limit(alpha / 2) * self.variance**0.5
        return self.mean - half, self.mean + half

    def detectable(self, level: float) -> float:
        """Return the difference that a two-sided t test at a level finds with probability POWER.

        With test images, the degrees of freedom are Satterthwaite's.
        """
        share = self.seed_share
        below = share**2 / self.seed_freedom + (1 - share) ** 2 / self.image_freedom
        found = special.nctdtrinc(1 / below, 1 - POWER, self.limit(level / 2))
        return rounded(found * self.variance**0.5)

    def tail(self, distance: float) -> float:
        """Return the one-sided p of a mean that lies ``distance`` away from the tested value.

        A negative distance has a p above 0.5. It agrees with ``interval``.
        """
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


def larger(own: SeedVariance, pooled: SeedVariance | None) -> SeedVariance:
    """Return the larger variance, with its own degrees of freedom.

    Rows may vary differently. So a row that varies more than the pool keeps its own variance and
    its few degrees of freedom: the other rows say nothing about it.
    """
    return own if pooled is None or own.value > pooled.value else pooled


def planned_error(
    seeds: int, num_tests: int, folds: int | None, *, has_test: bool
) -> MeanError | None:
    """Return the error that decides if paired differences have variance 1; None if none does."""
    freedom = seeds - 1.0
    if not has_test:
        if num_tests < 2:
            return None
        freedom = shared_freedom(num_tests, num_tests * freedom)
    variance = 1 / seeds + (1 / (folds - 1) if folds else 0.0)  # as in MeanError.of_seeds
    return MeanError(mean=0.0, variance=variance, seed_share=1.0, seed_freedom=freedom)
