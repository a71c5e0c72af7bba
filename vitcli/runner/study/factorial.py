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

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitcli.runner.study.combinations import Cell
from vitcli.runner.study.significance import ALPHA, holm, rounded, t_tail

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
    low: float
    high: float
    """95 % t interval."""
    freedom: float
    """Degrees of freedom of the interval and of p."""
    p: float
    p_holm: float
    """Adjusted over all effects of the study."""


def effects(parts: Sequence[str], scores: Scores) -> tuple[Effect, ...]:
    """Return the main effects, then the two-way interactions; empty if they cannot be estimated.

    They are estimated by least squares, so single scores may be missing.
    """
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    trials = Trials.of(scores)
    if not len(trials.y):
        return ()
    design = np.hstack([trials.of_seeds, trials.of_cells @ levels(terms, trials.cells)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return ()
    weights = np.linalg.pinv(design)[-len(terms) :]
    spreads, freedoms = trials.errors(weights)
    found = list(zip(weights @ trials.y, spreads, freedoms, strict=True))
    p_values = [min(1.0, 2 * t_tail(abs(v), s, freedom)) for v, s, freedom in found]
    adjusted = holm(p_values, len(terms))
    return tuple(
        Effect(
            parts=term,
            value=rounded(v),
            low=rounded(v + special.stdtrit(freedom, ALPHA / 2) * s),
            high=rounded(v - special.stdtrit(freedom, ALPHA / 2) * s),
            freedom=float(freedom),
            p=p,
            p_holm=p if q is None else q,
        )
        for term, (v, s, freedom), p, q in zip(terms, found, p_values, adjusted, strict=True)
    )


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
    """Return the number of trials that no effect uses, as ``Trials.of`` says."""
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
    """Return the columns of all cells, then those of all seeds."""
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
