"""How often is a verdict wrong if one looks after each seed? Random studies whose truth is known.

Usage: python -m experiments.statistics.looks [-o FILE] [--studies N]
Each study is judged as every table is. A verdict never disappears, so the table at three times the
plan shows what any look from 3 seeds on has found. Half of the cases are tables
of another program, without predictions; the others are studies with predictions for 200 test
images, whose seeds cause a fifth of the variance of a difference at the plan, or four fifths.
Where the planned seeds give no p-value, the variance is pooled over the rows. Measured are
  false         share of studies without differences in which a row is ever better or worse
  contradicts   share in which two looks contradict each other, so that a row has no effect
  equivalent    share of studies whose rows all lie at the margin, in which a row is ever equivalent
  power         share of first rows that are found at the plan if they differ by ``effect``
  power_fixed   the same by the rule for a single look: Holm's p, or the pooled interval, at 0.05
``effect`` is in standard errors of the mean difference at the plan.
By default all is written to experiments/results/statistics/looks.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.statistics.simulation import IMAGES, run
from vitcli.core.metric import ACCURACY
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.images import with_scores
from vitcli.runner.study.judgement import find_differences, find_equivalent
from vitcli.runner.study.looks import Look
from vitcli.runner.study.result import Plan, StudyResult, VariantResult
from vitcli.runner.study.significance import ALPHA, holm
from vitcli.runner.study.statistics import looks_of
from vitcli.runner.text import quantity

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "looks.json"
TIMES = 3
"""The last look is at so many times the planned seeds."""
Scores = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study: its plan, its rows, and the share of the variance that its seeds cause."""

    planned: int
    rows: int
    seed_share: float = 1.0
    """Of the variance of a mean difference at the plan; the rest comes from the test images. With
    1, there are no predictions."""
    loud: float = 1.0
    """Variance of the baseline's seeds over that of the others."""
    effect: float = 4.0


CASES = {
    **{
        f"{planned} planned, {quantity(rows, 'row')}": Case(planned=planned, rows=rows)
        for planned in (3, 5, 8, 10)
        for rows in (1, 5, 9)
    },
    **{
        f"{planned} planned, 5 rows, seeds {share:.0%}": Case(
            planned=planned, rows=5, seed_share=share
        )
        for planned in (3, 8)
        for share in (0.2, 0.8)
    },
    **{
        f"{planned} planned, 5 rows, baseline {loud:g} times": Case(
            planned=planned, rows=5, loud=loud
        )
        for planned in (3, 8)
        for loud in (9.0, 100.0)
    },
}


def draw(case: Case, seeds: int, random: np.random.Generator) -> list[Scores]:
    """Return the scores of the baseline and of each row in points, (seeds, IMAGES or 1).

    The standard error of a difference at the plan is 1 if the baseline is not loud.
    """
    images = 1 if case.seed_share == 1 else IMAGES
    of_seeds = (case.seed_share * case.planned / 2) ** 0.5
    of_images = ((1 - case.seed_share) * images / 2) ** 0.5
    scores = []
    for row in range(case.rows + 1):
        spread = of_seeds * case.loud**0.5 if row == 0 else of_seeds
        shared = random.normal(0, of_images, images) if of_images else np.zeros(images)
        scores.append(50 + random.normal(0, spread, (seeds, 1)) + shared)
    return scores


def study(case: Case, scores: list[Scores]) -> StudyResult:
    """Return the document of a study with these scores."""
    rows = [
        VariantResult(
            variant=f"row {i}",
            trials=tuple(
                RunRecord(seed=seed, state="finished", result={"test_accuracy": float(score) / 100})
                for seed, score in enumerate(each.mean(1))
            ),
        )
        for i, each in enumerate(scores)
    ]
    doc = StudyResult(
        name="random",
        command="",
        data="",
        epochs=0,
        num_comparisons=case.rows,
        base_config={},
        plan=Plan(seeds=case.planned),
        rows=tuple(rows),
    )
    if case.seed_share == 1:
        return doc
    labels = np.zeros(IMAGES, np.int64)
    found = [{s: PerImage(each[s] / 100, labels) for s in range(len(each))} for each in scores]
    return doc.replace(rows=with_scores(doc.rows, found, ACCURACY))


def fixed_rule(rows: Sequence[Look]) -> bool:
    """Return whether the rule for a single look finds the difference of the first row."""
    first, m = rows[0], len(rows)
    if m * 2 / 2**first.pairs <= ALPHA:
        adjusted = holm([look.p for look in rows], m)[0]
        return adjusted is not None and adjusted <= ALPHA
    if first.pooled is None:
        return False
    low, high = first.pooled.interval(ALPHA / m)
    return not low <= 0 <= high


def one_study(case: Case, random: np.random.Generator) -> dict[str, bool]:
    """Return what is found in a study without differences, and in one with a difference."""
    scores = draw(case, TIMES * case.planned, random)
    rows = find_differences(looks_of(study(case, scores)), case.rows)
    at_margin = [scores[0], *(each + case.effect for each in scores[1:])]
    near = find_equivalent(looks_of(study(case, at_margin)), case.rows, case.effect)
    planned = [each[: case.planned] for each in scores]
    planned[1] = planned[1] + case.effect
    looks = looks_of(study(case, planned))
    return {
        "false": any(row.pairs for row in rows),
        "contradicts": any(row.contradicts for row in rows),
        "equivalent": any(near),
        "power": find_differences(looks, case.rows)[0].pairs is not None,
        "power_fixed": fixed_rule([each[-1] for each in looks]),
    }


def measure(case: Case, studies: int) -> dict[str, float]:
    """Return the shares of one case."""
    random = np.random.default_rng(0)
    found = [one_study(case, random) for _ in range(studies)]
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


if __name__ == "__main__":
    run("looks", __doc__, CASES, measure, 2_000)
