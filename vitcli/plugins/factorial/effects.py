"""Factorial studies: every combination of the parts is trained, so parts can depend on each other.

A part is a variant of the study file; a cell is a set of parts that are changed together. An effect
uses the whole seeds, which every cell has. The cells of a seed share initial weights and the order
of the data, so their errors are not independent: each seed gives one number for an effect, which is
judged by these as a row of an ablation is by its paired differences.
Source of the effects: Montgomery 2017, Design and Analysis of Experiments, chapters 4 and 6.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitcli.plugins.factorial.crossing import Cell, cells
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.report.tables import DASH, Table, make_table
from vitcli.runner.study.judgement import find_differences
from vitcli.runner.study.looks import Look, looks_at, seeds_needed
from vitcli.runner.study.notes import plan_note
from vitcli.runner.study.result import MIN_PAIRS, Plan, StudyResult, sort_seeds
from vitcli.runner.study.significance import ALPHA, MeanError, holm, pool_seed_variance, rounded
from vitcli.runner.study.statistics import interval_of_looks, scores
from vitcli.runner.text import interval, p_text, quantity, signed

Scores = Mapping[Cell, Mapping[int, float]]
"""Cell -> seed -> score."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A main effect, or the interaction of two parts, in the unit of the scores."""

    parts: tuple[str, ...]
    num_seeds: int
    """Number of whole seeds."""
    value: float
    """Mean change of the part over the cells. For two parts: the effect of the first where the
    second is changed, minus its effect where the second is unchanged."""
    low: float | None
    high: float | None
    """95 % t interval, which holds at every look; None with fewer than three whole seeds, or if two
    looks contradict each other."""
    p: float | None
    """Larger p of a sign-flip test and a t test over the seeds; None if no p could decide."""
    p_holm: float | None
    """Adjusted over all effects of the study."""
    decided_at: int | None
    """Number of whole seeds of the look that found the effect: the present one if it does."""


def effects(
    parts: Sequence[str], scores: Scores, planned: int, plan: Plan | None = None
) -> tuple[Effect, ...]:
    """Return main effects, then two-way interactions; they need two whole seeds.

    ``plan`` has the order of the seeds, and the effects of parts that were removed or edited.
    """
    every = cells(parts)
    seeds = sort_seeds(set.intersection(*({*scores.get(cell, ())} for cell in every)), plan)
    if len(seeds) < 2:
        return ()
    terms = [*itertools.combinations(parts, 1), *itertools.combinations(parts, 2)]
    num_tests = max(len(terms), plan.num_effects if plan else 0)
    signs = [[math.prod(1 if part in cell else -1 for part in t) for t in terms] for cell in every]
    table = np.array([[scores[cell][seed] for cell in every] for seed in seeds])
    # An effect is 2^parts times the mean of signed scores. Without that factor, independent errors
    # vary all effects equally, so their variances can be pooled.
    means = np.round(table @ np.array(signs) / len(every), 12).T.tolist()
    looks = _looks(means, planned, num_tests)
    verdicts = find_differences(looks, num_tests)
    p_values = [row[-1].p if row and row[-1].has_test else None for row in looks]
    adjusted = holm(p_values, num_tests)
    found = []
    for i, term in enumerate(terms):
        scale, verdict = 2 ** len(term), verdicts[i]
        ends = interval_of_looks(looks[i], lambda look: look.interval(look.own, ALPHA), np.inf)
        low, high = (None if end is None else scale * end for end in ends)
        effect = Effect(
            parts=term,
            num_seeds=len(seeds),
            value=rounded(scale * np.mean(means[i])),
            low=low,
            high=high,
            p=p_values[i],
            p_holm=adjusted[i],
            decided_at=None if verdict.contradicts else verdict.pairs,
        )
        found.append(effect)
    return tuple(found)


def _looks(rows: Sequence[Sequence[float]], planned: int, num_tests: int) -> list[list[Look]]:
    """Return the looks at each effect, whose row has a number for each whole seed."""
    looks: list[list[Look]] = [[] for _ in rows]
    for pairs in looks_at(len(rows[0]), planned):
        firsts = [row[:pairs] for row in rows]
        pool = pool_seed_variance(firsts) if len(rows) == num_tests else None
        for seen, first in zip(looks, firsts, strict=True):
            look = Look(
                pairs=pairs,
                own=MeanError.of_seeds(first),
                pooled=MeanError.of_seeds(first, pool) if pool else None,
                planned=planned,
                num_tests=num_tests,
                differences=first,
            )
            seen.append(look)
    return looks


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
    return 100 / classes if classes and doc.headline.counts_right else None


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
        verdict = "exists" if effect.decided_at else "undecided"
        if effect.decided_at and effect.decided_at < effect.num_seeds:
            verdict = f"exists (at {quantity(effect.decided_at, 'seed')})"
        verdict = "incomplete" if is_incomplete(doc) else verdict
        rows.append((" x ".join(effect.parts), value, p_text(effect.p_holm) or DASH, verdict))
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
    num_seeds = effects[0].num_seeds
    needed = max(doc.planned_seeds, seeds_needed(num_tests))
    if num_seeds < MIN_PAIRS:
        exists = f"Looks start at {MIN_PAIRS} seeds, so every effect is undecided."
    elif effects[0].p is not None:
        exists = (
            "p: sign-flip test and t test, the larger p of both, Holm-adjusted for"
            f" {num_tests} effects. An effect exists if p is at most the level of this look, or was"
            " small enough at an earlier look."
        )
    elif len(effects) < num_tests:
        exists = f"No p can decide yet: for {num_tests} effects, it needs a plan of {needed} seeds."
    else:
        exists = (
            "An effect exists if its joint interval excludes 0, with the seed variance pooled over"
            f" the effects, or its own if that is larger; p needs a plan of {needed} seeds."
        )
    return [
        f"Effect of one part: mean change in {doc.headline.difference_unit} over all cells. Effect"
        " of two parts: the effect of the first where the second is changed, minus its effect where"
        " the second is unchanged. Each seed that every cell has gives one difference.",
        "Intervals: t, for new seeds alone, with a seed as one observation; they hold at every"
        " look, and are not adjusted.",
        exists,
        plan_note(doc),
        *notes,
    ]
