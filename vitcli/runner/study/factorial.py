"""Factorial studies: every combination of the parts is trained, so parts can depend on each other.

A part is a variant of the study file, such as the removal of LayerNorm. A cell is a set of parts
that are changed together. Seeds are blocks: each is used in every cell. The scores follow
score = mean + seed + effects of the changed parts + interactions + error, where errors of all cells
have the same variance. Every effect uses every trial.
Source: Montgomery 2017, Design and Analysis of Experiments, chapters 4 and 6.
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
    p: float
    p_holm: float
    """Adjusted over all effects of the study."""


def effects(parts: Sequence[str], scores: Mapping[Cell, Mapping[int, float]]) -> tuple[Effect, ...]:
    """Return the main effects, then the two-way interactions; empty if they cannot be estimated.

    They are estimated by least squares, so single scores may be missing. The error is that of
    scores around the means of cells and seeds.

    Args:
        parts: Names of the parts.
        scores: Cell -> seed -> score.
    """
    rows = [(cell, seed, y) for cell, found in scores.items() for seed, y in found.items()]
    if not rows:
        return ()
    y = np.array([value for _, _, value in rows])
    seeds = _indicators([seed for _, seed, _ in rows])
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    columns = np.array([[_level(term, cell) for term in terms] for cell, _, _ in rows])
    error, freedom = _error(_indicators([cell for cell, _, _ in rows]), seeds, y)
    design = np.hstack([seeds, columns])
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return ()
    values = np.linalg.lstsq(design, y, rcond=None)[0][-len(terms) :]
    spreads = np.sqrt(np.diag(np.linalg.inv(design.T @ design))[-len(terms) :] * error)
    p_values = [
        min(1.0, 2 * t_tail(abs(v), s, freedom)) for v, s in zip(values, spreads, strict=True)
    ]
    limit = -float(special.stdtrit(freedom, ALPHA / 2))
    adjusted = holm(p_values, len(terms))
    return tuple(
        Effect(
            parts=term,
            value=rounded(v),
            low=rounded(v - limit * s),
            high=rounded(v + limit * s),
            p=p,
            p_holm=p if q is None else q,
        )
        for term, v, s, p, q in zip(terms, values, spreads, p_values, adjusted, strict=True)
    )


def _level(term: Sequence[str], cell: Cell) -> float:
    """Return the coefficient of a term in a cell.

    A main effect counts +-1/2, so that it is the difference of two means. An interaction counts
    +-1/4, so that it is the difference of two effects.
    """
    return float(np.prod([0.5 if part in cell else -0.5 for part in term]))


def _indicators(labels: Sequence[object]) -> Matrix:
    """Return a column for each distinct label, 1 where it occurs."""
    names = list(dict.fromkeys(labels))
    return np.array([[float(label == name) for name in names] for label in labels])


def _error(of_cells: Matrix, of_seeds: Matrix, y: Matrix) -> tuple[float, int]:
    """Return the mean square of scores around cells and seeds, and its degrees of freedom."""
    design = np.hstack([of_cells, of_seeds])
    values, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(y) - int(rank)
    rest = float(((y - design @ values) ** 2).sum())
    return (rest / freedom if freedom else 0.0), freedom
