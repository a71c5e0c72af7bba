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

from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.study.definition import Cell
from vitcli.runner.study.judgement import find_differences
from vitcli.runner.study.looks import Look, looks_at
from vitcli.runner.study.notes import plan_note
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.significance import ALPHA, MeanError, holm, rounded
from vitcli.runner.study.statistics import interval_of_looks, scores
from vitcli.runner.tables import Column, Table
from vitcli.runner.text import interval, p_text, quantity, signed

Matrix = NDArray[np.float64]
Scores = Mapping[Cell, Mapping[int, float]]
"""Cell -> seed -> score."""
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

    @property
    def name(self) -> str:
        return " x ".join(self.parts)

    def text(self, digits: int) -> str:
        return f"{signed(self.value, digits)} {interval(self.low, self.high, digits)}"


def effects(parts: Sequence[str], scores: Scores, planned: int) -> tuple[Effect, ...]:
    """Return the main effects, then the two-way interactions; empty if they cannot be estimated.

    They are estimated by least squares, so single scores may be missing. A look is a whole seed,
    which every cell has; the present look takes all trials.
    """
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    known = {cell: by_seed for cell, by_seed in scores.items() if by_seed}
    seeds = sorted(set[int]().union(*known.values()).intersection(*known.values()))
    last = _errors(terms, known)
    if not last:
        return ()
    errors = {
        count: _errors(terms, {cell: {s: y[s] for s in seeds[:count]} for cell, y in known.items()})
        for count in looks_at(len(seeds), planned)[:-1]
    } | {len(seeds): last}
    rows = [
        [
            Look(pairs=pairs, own=of_terms[i], planned=planned, num_tests=len(terms))
            for pairs, of_terms in errors.items()
            if of_terms
        ]
        for i in range(len(terms))
    ]
    verdicts = find_differences(rows, len(terms))
    adjusted = holm([row[-1].p for row in rows], len(terms))
    found = []
    for term, row, verdict, p_holm in zip(terms, rows, verdicts, adjusted, strict=True):
        low, high = interval_of_looks(row, lambda look: look.interval(look.own, ALPHA), np.inf)
        effect = Effect(
            parts=term,
            value=rounded(row[-1].own.mean),
            low=low,
            high=high,
            freedom=row[-1].own.seed_freedom,
            p=row[-1].p,
            p_holm=row[-1].p if p_holm is None else p_holm,
            decided_at=None if verdict.contradicts else verdict.pairs,
        )
        found.append(effect)
    return tuple(found)


def _errors(terms: Sequence[Sequence[str]], scores: Scores) -> list[MeanError]:
    """Return the value and the error of each term; empty if one cannot be estimated.

    Axes: T trials, C cells, S seeds.
    """
    rows = _kept(scores)
    if not rows:
        return []
    cells = list(dict.fromkeys(cell for cell, _, _ in rows))
    y = np.array([score for _, _, score in rows])
    columns = _columns(rows)
    of_cells, of_seeds = np.hsplit(columns, [len(cells)])  # (T, C), (T, S)
    design = np.hstack([of_seeds, of_cells @ _coefficients(terms, cells)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return []
    weights = np.linalg.pinv(design)[-len(terms) :]
    squares = (y - columns @ np.linalg.pinv(columns) @ y) ** 2 / _left(columns)
    by_cell = weights**2 * squares @ of_cells  # what each cell adds to the variance of a term
    variances = by_cell.sum(1)
    below = (by_cell**2 / (of_cells.sum(0) - 1)).sum(1)
    freedoms = np.divide(variances**2, below, out=np.ones_like(variances), where=below > 0)
    numbers = zip((weights @ y).tolist(), variances.tolist(), freedoms.tolist(), strict=True)
    return [
        MeanError(mean=mean, variance=variance, seed_share=1.0, seed_freedom=freedom)
        for mean, variance, freedom in numbers
    ]


def _coefficients(terms: Sequence[Sequence[str]], cells: Sequence[Cell]) -> Matrix:
    """Return the coefficient of each term in each cell, (C, terms).

    A main effect counts +-1/2, so that it is the difference of two means. An interaction counts
    +-1/4, so that it is the difference of two effects.
    """
    signs = [[[0.5 if part in cell else -0.5 for part in term] for term in terms] for cell in cells]
    return np.array([[float(np.prod(term)) for term in cell] for cell in signs])


def _kept(scores: Scores) -> list[tuple[Cell, int, float]]:
    """Return cell, seed and score of the trials that cells and seeds do not fit exactly.

    A trial alone in its cell says nothing about the cell's spread.
    """
    rows = [(cell, seed, y) for cell, by_seed in scores.items() for seed, y in by_seed.items()]
    left = _left(_columns(rows))
    return [row for row, share in zip(rows, left, strict=True) if share > EXACT]


def _columns(rows: Sequence[tuple[Cell, int, float]]) -> Matrix:
    """Return a column for each cell, then one for each seed, 1 where a trial belongs to it."""
    columns = []
    for labels in ([cell for cell, _, _ in rows], [seed for _, seed, _ in rows]):
        for name in dict.fromkeys(labels):
            columns.append([float(label == name) for label in labels])
    return np.array(columns).reshape(len(columns), len(rows)).T


def _left(columns: Matrix) -> Matrix:
    """Return the share of each score that least squares over the columns leaves, (T,)."""
    return 1 - np.einsum("tc,ct->t", columns, np.linalg.pinv(columns))


def cell_scores(doc: StudyResult) -> Scores:
    """Return cell -> seed -> score. A diverged trial counts as chance.

    If chance is not known, cells with a diverged trial are left out.
    """
    chance = chance_score(doc)
    by_cell: dict[Cell, Mapping[int, float]] = {}
    for row in doc.rows:
        cell = frozenset() if row is doc.rows[0] else frozenset(row.variant.split("+"))
        diverged = [trial.seed for trial in row.trials if trial.state == "diverged"]
        if chance is not None or not diverged:
            by_cell[cell] = scores(row, doc.headline) | dict.fromkeys(diverged, chance or 0)
    return by_cell


def chance_score(doc: StudyResult) -> float | None:
    """Return the accuracy of guessing in percent; None if the number of classes is not known."""
    classes = doc.base_config.get("model.num_classes")
    if classes is None and doc.data in CATALOGUE:
        classes = len(CATALOGUE[doc.data].info.class_names)
    is_share = doc.headline.unit == "%" and doc.headline.higher_is_better
    return 100 / classes if classes and is_share else None


def effects_of(doc: StudyResult) -> tuple[Effect, ...]:
    return effects(doc.parts, cell_scores(doc), doc.planned_seeds)


def build_effects(doc: StudyResult) -> Table:
    """Return the main effects and the two-way interactions as a table of words."""
    found = effects_of(doc)
    headers = {"effect": "l", "points [95 % CI]": "r", "p (Holm)": "r", "verdict": "l"}
    rows = [
        (
            *(effect.name, effect.text(doc.headline.digits), p_text(effect.p_holm)),
            f"exists (at {quantity(effect.decided_at, 'seed')})"
            if effect.decided_at
            else "undecided",
        )
        for effect in found
    ]
    return Table(
        name=f"{doc.name}-effects",
        caption=f"{doc.name}: main effects and interactions.",
        columns=tuple(Column(header, align) for header, align in headers.items()),
        rows=tuple(rows),
        notes=tuple(_notes(doc, found)),
    )


def _notes(doc: StudyResult, found: tuple[Effect, ...]) -> list[str]:
    chance = chance_score(doc)
    notes = []
    if any(trial.state == "diverged" for row in doc.rows for trial in row.trials):
        counted = "left out with their cells" if chance is None else f"counted as {chance:g} %"
        notes.append(f"Diverged trials are {counted}.")
    if not found:
        return ["No effect can be estimated yet: it needs two seeds in the cells.", *notes]
    freedoms = sorted({f"{effect.freedom:.1f}" for effect in found}, key=float)
    freedom = " to ".join(dict.fromkeys((freedoms[0], freedoms[-1])))
    notes = [
        f"Effect of one part: mean change in {doc.headline.difference_unit} over all cells. Effect"
        " of two parts: the effect of the first where the second is changed, minus its effect where"
        " the second is unchanged.",
        f"Intervals: t with {freedom} degrees of freedom (Satterthwaite), from the spread of each"
        " cell's own scores around cells and seeds; they hold at every look, and are not adjusted."
        " They include the chance of the seeds, not that of the test images. p: adjusted by Holm's"
        f" method over {len(found)} effects. It exists: p is at most the level of a look, which is"
        " a whole seed.",
        plan_note(doc),
        *notes,
    ]
    known = cell_scores(doc)
    if alone := sum(map(len, known.values())) - len(_kept(known)):
        left_out = quantity(alone, "trial")
        notes.append(f"Left out: {left_out} without a second one in its cell or of its seed.")
    return notes
