"""Whether a change is better than the best so far, decided after as few pairs as possible.

A pair is one seed with the change and with the best. The first look is at FIRST pairs, the last at
``max_seeds``; each spends the same part of alpha. At most alpha of the changes without an effect
are ever called better or worse, however early the decision. The levels are those of normal
differences (``vitcli.runner.study.looks``).

Sources: Lan and DeMets 1983, https://doi.org/10.1093/biomet/70.3.659 (spending); Jennison and
Turnbull 1991, https://doi.org/10.1093/biomet/78.1.133 (t tests); Lan, Simon and Halperin 1982,
https://doi.org/10.1080/07474948208836014 (futility, by conditional power).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import special

from vitcli.core.metric import Metric
from vitcli.core.spec import Spec
from vitcli.core.spec.rows import AcceptsList
from vitcli.runner.errors import InputError
from vitcli.runner.study.looks import NOTHING, Chain
from vitcli.runner.study.result import Contrast
from vitcli.runner.study.significance import ALPHA, MeanError, SeedVariance
from vitcli.runner.text import interval

Verdict = Literal[
    "better", "worse", "equivalent", "unlikely to be better", "limited by the images",
    "not decided", "diverged", "more pairs",
]  # fmt: skip
Outcome = float | str | None
"""The score of a training, how it diverged, or None without a result."""
Outcomes = Sequence[tuple[Outcome, Outcome]]
"""Those of the change and of the best, in the order of their seeds."""
ContrastOf = Callable[[int], Contrast | None]
"""Returns the differences of so many pairs on each test image, if they are known."""
FIRST = 4
"""Number of pairs at the first look."""
MOST = 16
MaxSeeds = Annotated[int, Field(gt=FIRST, le=64)]
"""Number of pairs at which a comparison ends, fixed before the first."""
Margin = Annotated[float, Field(gt=0)]
"""Differences below this count as none, in the unit of the scores."""
Pair = Annotated[tuple[float, float], AcceptsList]
FUTILE_AT = 5
"""Number of pairs at which a change may first be given up."""
FUTILE = 0.1
"""It is given up if it would be better at the last look with less than this probability."""
FLOOR_SHARE = 0.8
"""Share of alpha that is spent with a noise floor. The rest pays for a floor that does not fit."""
ABOUT_IMAGES = "the verdict is about the images of these scores; predictions would tell of new ones"


def unit_of(metric: Metric) -> str:
    """Return the unit of a difference, whose sign is turned if a lower score is better."""
    return metric.difference_unit + " (above 0 is better)" * (not metric.higher_is_better)


class Answer(Spec):
    """What the pairs of a comparison say so far."""

    verdict: Verdict = "more pairs"
    mean: float | None = None
    """Mean difference; above 0 is better. Like the interval, it is in the unit of the table."""
    interval: Pair | None = None
    """What the intervals of the looks so far have in common."""
    alpha: float = ALPHA

    @property
    def is_final(self) -> bool:
        return self.verdict != "more pairs"

    @property
    def is_won(self) -> bool:
        return self.verdict in ("better", "equivalent")

    def interval_text(self, digits: int) -> str:
        share = f"({100 * (1 - self.alpha):g} % over all looks)"
        return f"{interval(*self.interval, digits)} {share}" if self.interval else "none yet"


class Decision(Answer):
    pairs: int
    """Number of pairs that decided, or that there are."""


@lru_cache(maxsize=64)
def levels(most: int, alpha: float) -> Chain:
    """Return the levels of all looks: the two-sided p that finds a difference."""
    return Chain(FIRST, lambda pairs: alpha / (most - FIRST + 1))


def decide(
    differences: Sequence[float],
    *,
    max_seeds: int = MOST,
    margin: float | None = None,
    higher_is_better: bool = True,
    floor: SeedVariance | None = None,
    contrast: Contrast | None = None,
    alpha: float = ALPHA,
) -> Decision:
    """Judge the differences of the pairs so far, each the change minus the best, in their order.

    Differences below the ``margin`` count as none; without one, a change that is unlikely to be
    better is given up. ``floor`` is the variance of earlier comparisons of the same recipe, and
    ``contrast`` the differences on each test image, whose error no seed reduces.
    """
    if len(differences) > max_seeds:
        raise InputError(
            f"{len(differences)} pairs, but the comparison ends at {max_seeds}; begin another one"
        )
    values = [difference if higher_is_better else -difference for difference in differences]
    spent = FLOOR_SHARE * alpha if floor else alpha
    low, high = -np.inf, np.inf
    verdict: Verdict
    for pairs in range(FIRST, len(values) + 1):
        seen = values[:pairs]
        is_inside = is_limited = False
        is_futile = not any(seen)
        if error := _error(seen, floor, contrast):
            below, above = error.interval(levels(max_seeds, spent).level(pairs))
            low, high = max(low, below), min(high, above)
            inner = error.interval(levels(max_seeds, 2 * spent).level(pairs))
            is_inside = margin is not None and -margin < inner[0] and inner[1] < margin
            is_futile = pairs < max_seeds and _chance(error, pairs, max_seeds, spent) < FUTILE
            of_images = (1 - error.seed_share) * error.variance
            is_limited = error.seed_share < 0.5 and abs(error.mean) < 2 * of_images**0.5
        if is_inside and low <= high:  # looks may contradict each other
            verdict = "equivalent"
        elif 0 < low <= high:
            verdict = "better"
        elif low <= high < 0:
            verdict = "worse"
        elif is_futile and pairs >= FUTILE_AT and margin is None:
            verdict = "unlikely to be better"
        elif is_limited:
            verdict = "limited by the images"
        else:
            continue
        values = seen
        break
    else:
        verdict = "not decided" if len(values) == max_seeds else "more pairs"
    return Decision(
        verdict=verdict,
        pairs=len(values),
        mean=float(np.mean(values)) if values else None,
        interval=(low, high) if np.isfinite(low) else None,
        alpha=alpha,
    )


def _error(
    differences: Sequence[float], floor: SeedVariance | None, contrast: Contrast | None
) -> MeanError | None:
    """Return the error of the mean difference; None while all differences are equal."""
    own, freedom = float(np.var(differences, ddof=1)), len(differences) - 1
    if own <= NOTHING:
        return None
    if floor:
        both = floor.freedom + freedom
        value = (floor.freedom * floor.value + freedom * own) / both
        floor = SeedVariance(value=value, freedom=both)
    error = MeanError.of_seeds(differences, floor)
    crossed = contrast.at(len(differences)) if contrast else None
    if crossed is None:
        return error
    of_images = max(0.0, crossed.ms_images - crossed.ms_residual)
    variance = error.variance + of_images / (crossed.num_seeds * crossed.num_images)
    return replace(error, variance=variance, seed_share=error.variance / variance)


def _chance(error: MeanError, pairs: int, most: int, alpha: float) -> float:
    """Return how likely better is at the last look, given the mean so far and a flat prior.

    P(T > (c sqrt(n / N) - t) / sqrt(1 - n / N)), with the limit c of the last look.
    """
    share = pairs / most
    t = error.mean / error.variance**0.5
    limit = -special.stdtrit(most - 1, levels(most, alpha).level(most) / 2)
    reach = (limit * share**0.5 - t) / (1 - share) ** 0.5
    return float(special.stdtr(pairs - 1, -reach))


def judge(outcomes: Outcomes, contrast_of: ContrastOf, **choices: Any) -> Decision:
    """Judge trainings up to the first pair without both scores; ``choices`` are of ``decide``."""
    differences = list[float]()
    for change, best in outcomes:
        if not (isinstance(change, int | float) and isinstance(best, int | float)):
            break
        differences.append(change - best)
    decision = decide(differences, contrast=contrast_of(len(differences)), **choices)
    if decision.is_final or len(differences) == len(outcomes):
        return decision
    if isinstance(best, str):
        raise InputError(f"the best so far diverged ({best}); compare with another experiment")
    return decision.replace(verdict="diverged") if isinstance(change, str) else decision
