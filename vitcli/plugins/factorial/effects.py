"""Factorial studies: every combination of the parts is trained, so parts can depend on each other.

A part is a variant of the study file; a cell is a set of parts that are changed together. An effect
uses the whole seeds, which every cell has. The scores follow score = mean + seed + effects of the
changed parts + interactions + error, and each cell has an error variance of its own.
Sources: Montgomery 2017, Design and Analysis of Experiments, chapters 4 and 6 (effects);
MacKinnon and White 1985, https://doi.org/10.1016/0304-4076(85)90158-7 (variances, "HC2");
Satterthwaite 1946, https://doi.org/10.2307/3002019 (degrees of freedom).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitcli.plugins.factorial.crossing import Cell, cells
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.report.tables import Table, make_table
from vitcli.runner.study.judgement import find_differences
from vitcli.runner.study.looks import Look, looks_at
from vitcli.runner.study.notes import plan_note
from vitcli.runner.study.result import Plan, StudyResult, sort_seeds
from vitcli.runner.study.significance import ALPHA, MeanError, holm, rounded
from vitcli.runner.study.statistics import interval_of_looks, scores
from vitcli.runner.text import interval, p_text, quantity, signed

Matrix = NDArray[np.float64]
Scores = Mapping[Cell, Mapping[int, float]]
"""Cell -> seed -> score."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A main effect, or the interaction of two parts, in the unit of the scores."""

    parts: tuple[str, ...]
    value: float
    """Mean change of the part over the cells. For two parts: the effect of the first where the
    second is changed, minus its effect where the second is unchanged."""
    low: float | None
    high: float | None
    """95 % t interval, which holds at every look; None with fewer than three whole seeds."""
    freedom: float
    """Degrees of freedom of the interval and of p, at the present look."""
    p: float
    p_holm: float
    """Adjusted over all effects of the study."""
    decided_at: int | None
    """Number of whole seeds of the look that found the effect: the present one if it does."""


def effects(
    parts: Sequence[str], scores: Scores, planned: int, plan: Plan | None = None
) -> tuple[Effect, ...]:
    """Return main effects, then two-way interactions; a look is a whole seed, and they need two.

    ``plan`` has the order of the seeds, and the effects of parts that were removed or edited.
    """
    every = cells(parts)
    seeds = sort_seeds(set.intersection(*({*scores.get(cell, ())} for cell in every)), plan)
    if len(seeds) < 2:
        return ()
    table = np.array([[scores[cell][seed] for seed in seeds] for cell in every])
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    num_tests = max(len(terms), plan.num_effects if plan else 0)
    # The difference of two means over half of the cells, or of two such differences.
    weights = [
        [math.prod(2 if part in cell else -2 for part in term) / len(every) for cell in every]
        for term in terms
    ]
    looks: list[list[Look]] = [[] for _ in terms]
    for count in sorted({*looks_at(len(seeds), planned), len(seeds)}):
        errors = _errors(np.array(weights), table[:, :count])
        for row, error in zip(looks, errors, strict=True):
            row.append(Look(pairs=count, own=error, planned=planned, num_tests=num_tests))
    verdicts = find_differences(looks, num_tests)
    adjusted = holm([row[-1].p for row in looks], num_tests)
    effects = []
    for term, row, verdict, p_holm in zip(terms, looks, verdicts, adjusted, strict=True):
        low, high = interval_of_looks(row, lambda look: look.interval(look.own, ALPHA), np.inf)
        effect = Effect(
            parts=term,
            value=rounded(row[-1].own.mean),
            low=low,
            high=high,
            freedom=row[-1].own.seed_freedom,
            p=row[-1].p,
            p_holm=p_holm or row[-1].p,
            decided_at=None if verdict.contradicts else verdict.pairs,
        )
        effects.append(effect)
    return tuple(effects)


def _errors(weights: Matrix, table: Matrix) -> list[MeanError]:
    """Return the value and the error of each term, whose weights are (T, C), from scores (C, S)."""
    cells, seeds = table.shape
    left = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    by_cell = (left**2).sum(1) / ((1 - 1 / cells) * (1 - 1 / seeds) * seeds**2)
    variances = (weights[:, 0] ** 2 * by_cell.sum()).tolist()
    freedom = float((seeds - 1) * by_cell.sum() ** 2 / ((by_cell**2).sum() or 1)) or 1.0
    return [
        MeanError(mean=mean, variance=variance, seed_share=1.0, seed_freedom=freedom)
        for mean, variance in zip((weights @ table.mean(1)).tolist(), variances, strict=True)
    ]


def cell_scores(doc: StudyResult) -> Scores:
    """Return cell -> seed -> score. A diverged trial counts as chance, if chance is known."""
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
    known = CATALOGUE[doc.data].info.class_names if doc.data in CATALOGUE else ()
    classes = doc.base_config.get("model.num_classes", len(known))
    is_share = doc.headline.unit == "%" and doc.headline.higher_is_better
    return 100 / classes if classes and is_share else None


def effects_of(doc: StudyResult) -> tuple[Effect, ...]:
    found = effects(doc.parts, cell_scores(doc), doc.planned_seeds, doc.plan)
    return tuple(replace(e, decided_at=None) for e in found) if is_incomplete(doc) else found


def is_incomplete(doc: StudyResult) -> bool:
    """Return whether a trial of a whole seed is missing, so that no look is over yet."""
    return not {trial.state for row in doc.rows for trial in row.trials} <= {"finished", "diverged"}


def build_effects(doc: StudyResult) -> Table:
    effects, digits = effects_of(doc), doc.headline.digits
    rows = []
    for effect in effects:
        value = f"{signed(effect.value, digits)} {interval(effect.low, effect.high, digits)}"
        seeds = quantity(effect.decided_at or 0, "seed")
        verdict = f"exists (at {seeds})" if effect.decided_at else "undecided"
        verdict = "incomplete" if is_incomplete(doc) else verdict
        rows.append((" x ".join(effect.parts), value, p_text(effect.p_holm), verdict))
    return make_table(
        ("effect", "points [95 % CI]", "p (Holm)", "verdict"),
        rows,
        (1, 2),
        name=f"{doc.name}-effects",
        caption=f"{doc.name}: main effects and interactions.",
        notes=tuple(_notes(doc, effects)),
    )


def _notes(doc: StudyResult, effects: Sequence[Effect]) -> list[str]:
    chance, notes = chance_score(doc), []
    if any(trial.state == "diverged" for row in doc.rows for trial in row.trials):
        counted = "allow no effects" if chance is None else f"are counted as {chance:g} %"
        notes.append(f"Diverged trials {counted}.")
    if not effects:
        return ["No effect can be estimated yet: it needs two seeds in every cell.", *notes]
    num_tests = max(len(effects), doc.plan.num_effects if doc.plan else 0)
    return [
        f"Effect of one part: mean change in {doc.headline.difference_unit} over all cells. Effect"
        " of two parts: the effect of the first where the second is changed, minus its effect where"
        " the second is unchanged. They use the seeds that every cell has.",
        f"Intervals: t with {effects[0].freedom:.1f} degrees of freedom (Satterthwaite), for new"
        " seeds alone; they hold at every look, and are not adjusted. p: adjusted by Holm's method"
        f" over {num_tests} effects; an effect exists if p is at most the level of a look.",
        plan_note(doc),
        *notes,
    ]
