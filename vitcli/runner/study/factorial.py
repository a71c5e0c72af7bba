"""Factorial studies: every combination of the parts is trained, so parts can depend on each other.

A part is a variant of the study file, such as the removal of LayerNorm. A cell is a set of parts
that are changed together. Seeds are blocks: each is used in every cell. The scores follow
score = mean + seed + effects of the changed parts + interactions + error, and each cell has an
error variance of its own. Every effect uses every trial.
Sources: Montgomery 2017, Design and Analysis of Experiments, chapters 4 and 6 (effects);
MacKinnon and White 1985, https://doi.org/10.1016/0304-4076(85)90158-7 (variances, "HC2");
Satterthwaite 1946, https://doi.org/10.2307/3002019 (degrees of freedom).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitcli.runner.study.combinations import Cell
from vitcli.runner.study.judgement import Verdict, settle
from vitcli.runner.study.looks import level, looks_at, step_down
from vitcli.runner.study.significance import holm, rounded, t_tail

Matrix = NDArray[np.float64]
Scores = Mapping[Cell, Mapping[int, float]]
"""Cell -> seed -> score."""
Row = tuple[Cell, int, float]
"""Cell, seed and score of a trial."""
EXACT = 1e-9
"""A trial with at most this share of its score left by cells and seeds has no residual."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A main effect, or the interaction of two parts, in the unit of the scores.

    A main effect is the mean over the cells of changing the part. An interaction is the effect of
    the first part where the second is changed, minus its effect where the second is unchanged.
    """

    parts: tuple[str, ...]
    value: float
    low: float | None
    high: float | None
    """95 % t interval, which holds at every look; None with fewer than three whole seeds."""
    freedom: float
    """Degrees of freedom of the interval and of p, at the present look."""
    p: float
    p_holm: float
    """Adjusted over all effects of the study."""
    decided_at: int | None
    """Number of whole seeds of the present look if it finds the effect, else of the first look that
    did; None if none did, or if two looks contradict each other."""


class Estimate(NamedTuple):
    """An effect at one look."""

    pairs: int
    """Number of whole seeds."""
    value: float
    error: float
    freedom: float

    @property
    def is_higher(self) -> bool:
        return self.value > 0

    @property
    def p(self) -> float:
        return min(1.0, 2 * t_tail(abs(self.value), self.error, self.freedom))

    def interval(self, level: float) -> tuple[float, float]:
        half = -float(special.stdtrit(self.freedom, level / 2)) * self.error
        return self.value - half, self.value + half


def effects(parts: Sequence[str], scores: Scores, planned: int) -> tuple[Effect, ...]:
    """Return the main effects, then the two-way interactions; empty if they cannot be estimated.

    They are estimated by least squares, so single scores may be missing. A look is a whole seed,
    which every cell has; the present look takes all trials.
    """
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    cells = {cell: found for cell, found in scores.items() if found}
    seeds = sorted(set[int]().union(*cells.values()).intersection(*cells.values()))
    last = _estimates(terms, cells, len(seeds))
    if not last:
        return ()
    looks = [
        _estimates(terms, {cell: {s: found[s] for s in first} for cell, found in cells.items()}, n)
        for n in looks_at(len(seeds), planned)[:-1]
        for first in [seeds[:n]]
    ]
    rows = [*zip(*filter(None, [*looks, last]), strict=True)]

    def finds(look: Estimate, alpha: float) -> bool:
        return look.p <= level(look.pairs, planned, alpha)

    decisions = step_down(rows, len(terms), finds)
    adjusted = holm([look.p for look in last], len(terms))
    return tuple(
        _effect(
            term,
            row,
            planned,
            p,
            settle(row, first, finds),
        )
        for term, row, p, first in zip(terms, rows, adjusted, decisions, strict=True)
    )


def _effect(
    parts: tuple[str, ...],
    looks: Sequence[Estimate],
    planned: int,
    p_holm: float | None,
    verdict: Verdict,
) -> Effect:
    last = looks[-1]
    limits = {look: level(look.pairs, planned) for look in looks}
    held = [look.interval(limit) for look, limit in limits.items() if limit]
    low = max((interval[0] for interval in held), default=None)
    high = min((interval[1] for interval in held), default=None)
    if low is None or high is None or low > high or not limits[last]:
        low = high = None
    return Effect(
        parts=parts,
        value=rounded(last.value),
        low=low if low is None else rounded(low),
        high=high if high is None else rounded(high),
        freedom=last.freedom,
        p=last.p,
        p_holm=last.p if p_holm is None else p_holm,
        decided_at=None if verdict.contradicts else verdict.pairs,
    )


def _estimates(terms: Sequence[Sequence[str]], scores: Scores, seeds: int) -> list[Estimate]:
    """Return the estimate of each term; empty if one cannot be estimated."""
    trials = Trials.of(scores)
    if not len(trials.y):
        return []
    design = np.hstack([trials.of_seeds, trials.of_cells @ levels(terms, trials.cells)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return []
    weights = np.linalg.pinv(design)[-len(terms) :]
    numbers = zip(weights @ trials.y, *trials.errors(weights), strict=True)
    return [Estimate(seeds, *map(float, each)) for each in numbers]


@dataclass(frozen=True, kw_only=True)
class FTest:
    """A test that several effects are all zero."""

    ratio: float
    freedoms: tuple[float, float]
    p: float


def higher_interactions(parts: Sequence[str], scores: Scores) -> FTest | None:
    """Return the test of all interactions of three or more parts; None if it is not possible.

    The cells are compared with the main effects and two-way interactions that fit them best.
    Source: Brunner, Dette and Munk 1997, https://doi.org/10.1080/01621459.1997.10473671
    """
    terms = [term for count in range(3) for term in itertools.combinations(parts, count)]
    trials = Trials.of(scores)
    design = levels(terms, trials.cells)
    if np.linalg.matrix_rank(design) == len(trials.cells):
        return None
    rest = np.eye(len(design)) - design @ np.linalg.pinv(design)
    weights = rest @ trials.to_cells
    covariance = weights * trials.variances @ weights.T
    (spread,), (freedom,) = trials.errors(np.sqrt((weights**2).sum(0, keepdims=True)))
    if spread == 0:
        return None
    ratio = float(((weights @ trials.y) ** 2).sum() / spread**2)
    freedoms = (float(spread**4 / (covariance**2).sum()), float(freedom))
    return FTest(ratio=ratio, freedoms=freedoms, p=float(special.fdtrc(*freedoms, ratio)))


def alone(scores: Scores) -> int:
    return sum(map(len, scores.values())) - len(Trials.of(scores).y)


def levels(terms: Sequence[Sequence[str]], cells: Sequence[Cell]) -> Matrix:
    """Return the coefficient of each term in each cell, (C, terms).

    A main effect counts +-1/2, so that it is the difference of two means. An interaction counts
    +-1/4, so that it is the difference of two effects.
    """
    return np.array(
        [
            [float(np.prod([0.5 if part in cell else -0.5 for part in term])) for term in terms]
            for cell in cells
        ]
    )


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Scores, and what they say about chance. Axes: T trials, C cells, S seeds."""

    cells: list[Cell]
    y: Matrix
    """(T,)"""
    of_cells: Matrix
    """1 where a trial belongs to a cell, (T, C)."""
    of_seeds: Matrix
    """1 where a trial has a seed, (T, S)."""
    to_cells: Matrix
    """Weights of the trials in the estimate of each cell, (C, T)."""
    variances: Matrix
    """Squared residual of each trial around cells and seeds, over the share left to it, (T,)."""

    @classmethod
    def of(cls, scores: Scores) -> "Trials":
        """Return the trials that cells and seeds do not fit exactly.

        A trial alone in its cell says nothing about the cell's spread, so it is left out.
        """
        rows = [(cell, seed, y) for cell, found in scores.items() for seed, y in found.items()]
        rows = [row for row, left in zip(rows, _left(_columns(rows)), strict=True) if left > EXACT]
        of_cells = _indicators([cell for cell, _, _ in rows])
        y = np.array([value for _, _, value in rows])
        columns = _columns(rows)
        inverse = np.linalg.pinv(columns).astype(np.float64)
        return cls(
            cells=list(dict.fromkeys(cell for cell, _, _ in rows)),
            y=y,
            of_cells=of_cells,
            of_seeds=columns[:, of_cells.shape[1] :],
            to_cells=inverse[: of_cells.shape[1]],
            variances=(y - columns @ (inverse @ y)) ** 2 / _left(columns),
        )

    def errors(self, weights: Matrix) -> tuple[Matrix, Matrix]:
        """Return the standard errors of weighted sums of the scores, and degrees of freedom.

        A variance is the sum of what each cell adds, with one degree of freedom less than it has
        trials; the sum has Satterthwaite's degrees of freedom. Without variance, they are 1.
        """
        by_cell = weights**2 * self.variances @ self.of_cells
        total = by_cell.sum(1)
        below = (by_cell**2 / (self.of_cells.sum(0) - 1)).sum(1)
        freedoms = np.divide(total**2, below, out=np.ones_like(total), where=below > 0)
        return np.sqrt(total), freedoms


def _columns(rows: Sequence[Row]) -> Matrix:
    parts = [_indicators([row[place] for row in rows]) for place in (0, 1)]
    return np.hstack(parts)


def _indicators(labels: Sequence[object]) -> Matrix:
    """Return a column for each distinct label, 1 where it occurs."""
    names = list(dict.fromkeys(labels))
    ones = [[float(label == name) for name in names] for label in labels]
    return np.array(ones).reshape(len(labels), len(names))


def _left(columns: Matrix) -> Matrix:
    """Return the share of each score that least squares over the columns leaves, (T,)."""
    return 1 - np.einsum("tc,ct->t", columns, np.linalg.pinv(columns))
