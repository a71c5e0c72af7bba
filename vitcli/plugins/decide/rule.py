"""Whether a change is better than the best so far, decided after as few pairs as possible.

A pair is one seed with the change and with the best. The first look is at FIRST pairs, the last at
``most``; each spends the same part of alpha. At most alpha of the changes without an effect are
ever called better or worse, however early the decision. The levels are those of normal differences
(``vitcli.runner.study.looks``).

Sources: Lan and DeMets 1983, https://doi.org/10.1093/biomet/70.3.659 (spending); Jennison and
Turnbull 1991, https://doi.org/10.1093/biomet/78.1.133 (t tests); Lan, Simon and Halperin 1982,
https://doi.org/10.1080/07474948208836014 (futility, by conditional power).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.study.looks import NOTHING, Chain
from vitcli.runner.study.significance import ALPHA, MeanError, SeedVariance, larger_variance

Verdict = Literal[
    "better", "worse", "equivalent", "unlikely to be better", "limited by the images",
    "not decided", "diverged", "more pairs",
]  # fmt: skip
FIRST = 4
"""Number of pairs at the first look."""
MOST = 16
LIMIT = 64
"""Largest number of pairs at which a comparison may end."""
FUTILE_AT = 5
"""Number of pairs at which a change may first be given up."""
FUTILE = 0.1
"""It is given up if it would be better at the last look with less than this probability."""
FLOOR_SHARE = 0.8
"""Share of alpha that is spent with a noise floor. The rest pays for a floor that does not fit."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    verdict: Verdict
    """``diverged`` is that of trainings; no number alone says it."""
    pairs: int
    """Number of pairs that decided, or that there are."""
    most: int
    mean: float | None
    interval: tuple[float, float] | None
    """The intersection of the intervals of the looks so far, in the unit of the scores."""
    alpha: float

    @property
    def is_final(self) -> bool:
        return self.verdict != "more pairs"

    @property
    def is_won(self) -> bool:
        return self.verdict in ("better", "equivalent")


@lru_cache(maxsize=64)
def _chain(most: int, alpha: float) -> Chain:
    return Chain(FIRST, lambda pairs: alpha / (most - FIRST + 1))


def level(pairs: int, most: int, alpha: float) -> float:
    """Return the two-sided p that finds a difference at a look."""
    return _chain(most, alpha).level(pairs)


def check(differences: Sequence[float], most: int, margin: float | None) -> None:
    if not FIRST < most <= LIMIT:
        raise ConfigError(f"a comparison ends at {FIRST + 1} to {LIMIT} pairs, not at {most}")
    if len(differences) > most:
        raise InputError(
            f"{len(differences)} pairs, but the comparison ends at {most}; more than that need a"
            " new comparison on new seeds"
        )
    if margin is not None and not 0 < margin < np.inf:
        raise ConfigError(f"a margin is a number above 0, not {margin:g}")
    if not np.isfinite(differences).all():
        raise ConfigError("a difference is not a finite number")


def decide(
    differences: Sequence[float],
    *,
    most: int = MOST,
    margin: float | None = None,
    floor: SeedVariance | None = None,
    image_variance: Mapping[int, float] | None = None,
    alpha: float = ALPHA,
) -> Decision:
    """Judge the differences of the pairs so far, in the order of their seeds; higher is better.

    Args:
        differences: Score of the change minus that of the best, a pair each.
        most: Number of pairs at which the comparison ends, fixed before the first.
        margin: Differences below this count as none. None asks only for better and worse, and gives
            up a change that is unlikely to be better.
        floor: Variance of the differences of earlier comparisons of the same recipe, and its
            degrees of freedom.
        image_variance: Number of pairs -> variance of their mean difference over new test images,
            which no seed reduces. None judges the given images alone.
        alpha: Probability of a wrong "better" or "worse"; with a floor, 4/5 of it are spent.

    Raises:
        ConfigError: A number is not finite, or the margin is out of range.
        InputError: There are more pairs than ``most``.
    """
    check(differences, most, margin)
    alpha = FLOOR_SHARE * alpha if floor else alpha
    low, high = -np.inf, np.inf
    verdict: Verdict = "more pairs"
    for pairs in range(FIRST, len(differences) + 1):
        of_images = image_variance[pairs] if image_variance else 0.0
        error = _error(differences[:pairs], floor, of_images)
        is_hopeless = pairs >= FUTILE_AT and not any(differences[:pairs])
        if error is not None:
            below, above = error.interval(level(pairs, most, alpha))
            low, high = max(low, below), min(high, above)
            half = error.interval(level(pairs, most, 2 * alpha))
            is_inside = margin is not None and -margin < half[0] and half[1] < margin
            if low <= high and (is_inside or low > 0 or high < 0):  # looks may contradict
                verdict = "equivalent" if is_inside else "better" if low > 0 else "worse"
            is_hopeless = pairs >= FUTILE_AT and _is_futile(error, pairs, most, alpha)
        if verdict == "more pairs" and margin is None and is_hopeless:
            verdict = "unlikely to be better"
        if verdict == "more pairs" and error is not None and _is_limited(error, of_images):
            verdict = "limited by the images"
        if verdict != "more pairs":
            differences = differences[:pairs]
            break
    if verdict == "more pairs" and len(differences) == most:
        verdict = "not decided"
    shown = np.asarray(differences)
    return Decision(
        verdict=verdict,
        pairs=len(shown),
        most=most,
        mean=float(shown.mean()) if len(shown) else None,
        interval=(float(low), float(high)) if np.isfinite(low) else None,
        alpha=alpha,
    )


def _error(
    differences: Sequence[float], floor: SeedVariance | None, image_variance: float
) -> MeanError | None:
    """Return the error of the mean difference; None while all differences are equal."""
    count = len(differences)
    own = SeedVariance(value=float(np.var(differences, ddof=1)), freedom=count - 1)
    if own.value <= NOTHING:
        return None
    if floor:
        freedom = floor.freedom + own.freedom
        both = (floor.freedom * floor.value + own.freedom * own.value) / freedom
        own = larger_variance(own, SeedVariance(value=both, freedom=freedom))
    of_seeds = own.value / count
    return MeanError(
        mean=float(np.mean(differences)),
        variance=of_seeds + image_variance,
        seed_share=of_seeds / (of_seeds + image_variance),
        seed_freedom=own.freedom,
    )


def _is_limited(error: MeanError, image_variance: float) -> bool:
    return image_variance > error.variance / 2 and abs(error.mean) < 2 * image_variance**0.5


def _is_futile(error: MeanError, pairs: int, most: int, alpha: float) -> bool:
    """Return whether better is unlikely at the last look, given the mean so far and a flat prior.

    P(T > (c sqrt(n / N) - t) / sqrt(1 - n / N)), with the limit c of the last look.
    """
    if pairs == most:
        return False
    share = pairs / most
    t = error.mean / error.variance**0.5
    limit = -special.stdtrit(most - 1, level(most, most, alpha) / 2)
    reach = (limit * share**0.5 - t) / (1 - share) ** 0.5
    return bool(special.stdtr(pairs - 1, -reach) < FUTILE)
