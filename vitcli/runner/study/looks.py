"""The level of each look at a study, so that its verdicts hold however often one looks.

A look is the first k pairs of seeds, in the order of the seeds. A study plans its number of seeds
before its first result. Of ALPHA, 5 % are spent on the looks before the planned one, 85 % on that
one, and 10 % on all later ones, for ever. A difference is found if its p is at most the level of a
look. Then the probability that any look finds a difference which does not exist is at most ALPHA.
At the plan, sign flips may spend all of ALPHA: a level between two of their steps of 2 / 2^pairs
costs power, and the t test, which must agree, keeps the level.

For normal differences, u = sum / sqrt(sum of squares) is a Markov chain that does not depend on
their unknown variance, so the levels are computed, not drawn.
Sources: Lan and DeMets 1983, https://doi.org/10.1093/biomet/70.3.659 (spending);
Jennison and Turnbull 1991, https://doi.org/10.1093/biomet/78.1.133 (t tests).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitcli.runner.study.result import EXACT_LOOKS, MIN_PAIRS
from vitcli.runner.study.significance import ALPHA, MeanError, sign_flip_p

BEFORE, AT = 0.05, 0.85
"""Shares of alpha that are spent before the plan and at it; a plan without earlier looks spends
both at once. The rest is left for the looks after it."""
AFTER = 1 - BEFORE - AT
NOTHING = 1e-18
"""Largest variance that rounding leaves to equal differences."""
CELLS = 120
"""Number of cells that hold the distribution of abs(u)."""
HALVINGS = 30

Array = NDArray[np.float64]


def level(pairs: int, planned: int, alpha: float = ALPHA) -> float:
    """Return the largest two-sided p that finds a difference at a look; 0 if none does."""
    chain = _chain(planned, alpha)
    if pairs < chain.first:
        return 0.0
    if pairs - chain.first >= EXACT_LOOKS:
        return chain.part(pairs)
    return chain.level(pairs)


def looks_at(pairs: int, planned: int) -> list[int]:
    """Return the numbers of pairs at which so many pairs were looked at.

    Between the first EXACT_LOOKS and the present one none counts, which can only cost power.
    """
    first = _chain(planned, ALPHA).first
    return [*range(first, min(pairs, first + EXACT_LOOKS)), pairs] if pairs >= MIN_PAIRS else []


def can_test(pairs: int, planned: int, num_tests: int, *, folds: bool = False) -> bool:
    """Return whether p decides at a look: at the plan it can find a difference, or it can here.

    The smallest p of the sign flips, 2 / 2^pairs, must be at most the level of Holm's first step.
    With folds, there are no sign flips.
    """
    looks = {pairs, planned} if pairs >= planned else {pairs}
    limits = {each: level(each, planned, ALPHA / num_tests) for each in looks}
    return any(limit > 0 and (folds or 2 / 2**each <= limit) for each, limit in limits.items())


def seeds_needed(num_tests: int, *, folds: bool = False) -> int:
    counts = itertools.count(MIN_PAIRS)
    # A level is below its alpha, so smaller numbers need no level, which takes a moment.
    return next(
        seeds
        for seeds in counts
        if (folds or 2 / 2**seeds <= ALPHA / num_tests)
        and can_test(seeds, seeds, num_tests, folds=folds)
    )


def step_down(
    rows: Sequence[Sequence["Look"]], num_tests: int, finds: Callable[["Look", float], bool]
) -> list[tuple["Look", float] | None]:
    """Return the first look at each row that finds something, by Holm's method, and its alpha.

    A look finds something at alpha / (number of comparisons that no look has decided yet).
    Reference: Holm 1979, https://www.jstor.org/stable/4615733
    """
    found: list[tuple[Look, float] | None] = [None] * len(rows)
    left = num_tests
    while left:
        alpha, before = ALPHA / left, left
        for i, looks in enumerate(rows):
            if found[i] is None and (look := next((x for x in looks if finds(x, alpha)), None)):
                found[i] = look, alpha
                left -= 1
        if left == before:
            break
    return found


@lru_cache(maxsize=512)
def _chain(planned: int, alpha: float) -> "Chain":
    first = MIN_PAIRS if planned - MIN_PAIRS < EXACT_LOOKS else planned

    def part(pairs: int) -> float:
        if pairs == planned:
            return alpha * (AT if first < planned else AT + BEFORE)
        if pairs > planned:  # the parts add up to AFTER
            return alpha * AFTER * planned / (pairs * (pairs - 1))
        return alpha * BEFORE * pairs / sum(range(first, planned))

    return Chain(first, part)


class Chain:
    """The levels of the looks so far, and the distribution of abs(u) where none found anything."""

    def __init__(self, first: int, part: Callable[[int], float]) -> None:
        """``part`` is the part of alpha that the look at so many pairs spends."""
        self.first, self.part = first, part
        self.levels: list[float] = []
        self._edges = self._mass = np.zeros(0)

    def level(self, pairs: int) -> float:
        """Return the two-sided p that finds a difference at this look."""
        while len(self.levels) <= pairs - self.first:
            self.add()
        return self.levels[pairs - self.first]

    def add(self) -> None:
        pairs = self.first + len(self.levels)
        freedom, part = pairs - 1, self.part(pairs)
        if not self.levels:
            limit = float(special.stdtrit(freedom, 1 - part / 2))
            self._edges = _grid(limit, pairs)
            t = self._edges * np.sqrt(freedom / (pairs - self._edges**2))
            self._mass = 2 * np.diff(special.stdtr(freedom, t))
        else:
            middle = (self._edges[1:] + self._edges[:-1]) / 2
            low, high = 0.3, 1e6
            for _ in range(HALVINGS):
                limit = (low * high) ** 0.5
                found = float(_tail(_u(limit, pairs), middle, freedom) @ self._mass)
                low, high = (limit, high) if found > part else (low, limit)
            limit = high
            self._edges = _grid(limit, pairs)
            tails = _tail(self._edges[:, None], middle, freedom)
            self._mass = -np.diff(tails, axis=0) @ self._mass
        self.levels.append(float(2 * special.stdtr(freedom, -limit)))


def _u(t: float, pairs: int) -> float:
    return float(t * np.sqrt(pairs / (pairs - 1 + t * t)))


def _grid(limit: float, pairs: int) -> Array:
    return np.asarray(_u(limit, pairs) * np.sin(np.linspace(0, np.pi / 2, CELLS + 1)))


def _tail(v: Array | float, u: Array, pairs: int) -> Array:
    """Return the probability that abs(u) exceeds v after the next pair, given u after ``pairs``.

    A new difference of w sqrt(sum of squares) makes u' = (u + w) / sqrt(1 + w^2), and w
    sqrt(pairs) has a t distribution. With w = tan(angle), u' = sqrt(1 + u^2) cos(angle - peak).
    """
    peak = np.arctan2(1.0, u)

    def above(v: Array | float) -> Array:
        reach = np.arccos(np.clip(v / np.sqrt(1 + u * u), -1, 1))
        angles = np.clip([peak - reach, peak + reach], -np.pi / 2, np.pi / 2)
        low, high = special.stdtr(pairs, np.tan(angles) * pairs**0.5)
        return np.asarray(high - low)

    return above(v) + 1 - above(-v)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the first pairs of a row say, in the order of the seeds."""

    pairs: int
    own: MeanError
    pooled: MeanError | None = None
    """With the seed variance pooled over the rows; it decides where no p-value can."""
    planned: int
    num_tests: int
    differences: Sequence[float] = ()
    """Paired differences with independent signs; without them, the t test alone decides."""

    def level(self, alpha: float) -> float:
        return level(self.pairs, self.planned, alpha)

    def interval(self, error: MeanError | None, alpha: float) -> tuple[float, float] | None:
        limit = self.level(alpha)
        return error.interval(limit) if error and limit else None

    @property
    def has_test(self) -> bool:
        return can_test(self.pairs, self.planned, self.num_tests, folds=not self.differences)

    @property
    def deciding(self) -> MeanError | None:
        """Return the error that decides; None if nothing can.

        Equal differences do not tell how much others vary, and only the sign flips allow for that.
        """
        if self.has_test:
            return self.own
        return self.pooled if self.pooled and self.pooled.variance > NOTHING else None

    @property
    def is_higher(self) -> bool:
        return self.own.mean > 0

    @property
    def deciding_interval(self) -> tuple[float, float] | None:
        error = self.deciding
        if error is None or error.variance <= NOTHING:
            return None
        return self.interval(error, ALPHA / self.num_tests)

    @cached_property
    def p(self) -> float:
        return max(self._t, self._flips)

    def p_level(self, alpha: float) -> float:
        limit = self.level(alpha)
        is_between = self.pairs == self.planned and self._t <= limit < self._flips
        return alpha if is_between else limit

    def is_clear(self, alpha: float) -> bool:
        if self.has_test:
            return self._t <= self.level(alpha) and self._flips <= self.p_level(alpha)
        interval = self.interval(self.deciding, ALPHA / self.num_tests)
        return interval is not None and not interval[0] <= 0 <= interval[1]

    def p_equivalent(self, margin: float) -> float | None:
        """Return the p of two one-sided tests that the difference lies within a margin.

        Source: Schuirmann 1987, https://doi.org/10.1007/BF01068419
        """
        error = self.deciding
        if error is None or error.variance <= NOTHING:
            return None
        return error.tail(margin - abs(error.mean))

    def is_equivalent(self, margin: float, alpha: float) -> bool:
        p = self.p_equivalent(margin)
        return p is not None and p <= self.level(2 * alpha) / 2

    @cached_property
    def _t(self) -> float:
        return min(1.0, 2 * self.own.tail(abs(self.own.mean)))

    @cached_property
    def _flips(self) -> float:
        return sign_flip_p(self.differences) if self.differences else 0.0
