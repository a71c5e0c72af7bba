"""How often are the statistics of a study right? Random studies whose truth is known.

Usage: python -m experiments.statistics.simulation [-o FILE] [--studies N]
Scores are drawn from the model of the headline interval: seeds, test images and their interaction
are normal. Each case has a number of seeds, and the share of the variance of a mean difference that
comes from the seeds, from the images, and from their interaction. In a loud case, the seeds of one
variant, or of the baseline, vary more than those of the others. The last case has wrong and right
answers instead. A study has a baseline and five variants, and is looked at once, with all planned
seeds; the true differences are 0, or the margin of equivalence. Measured are
  interval      how often the interval of the first variant holds the true difference
  joint         how often all five joint intervals do
  pooled        how often all five pooled intervals do
  lucky_joint   how often a joint interval does if the estimated share of the seeds is below 0.15
  lucky_pooled  how often the pooled interval of such a row does
  different     share of studies in which a row is called better or worse, although none is
  equivalent    share of studies in which a row is called equivalent, although all lie at the margin
By default all is written to experiments/results/statistics/simulation.json.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcli.runner.machine.device import source_commit
from vitcli.runner.study.images import cross
from vitcli.runner.study.judgement import find_differences, find_equivalent
from vitcli.runner.study.looks import Look, level
from vitcli.runner.study.significance import ALPHA, MeanError, pool_seed_variance, rounded

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "simulation.json"
VARIANTS, IMAGES = 5, 200
MARGIN = 1.0
"""The margin of equivalence; the standard error of a difference is a third of it."""
LUCKY = 0.15
"""An estimated share of the seeds below which the seeds may agree by luck."""
FEWEST = 50
"""Fewest lucky rows of which a share is stated."""
Table = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Number of seeds, and the parts of the variance of a difference."""

    seeds: int
    of_seeds: float
    of_images: float
    variant_factor: float = 1.0
    """Variance of the first variant's seeds over that of the other variants' seeds."""
    baseline_factor: float = 1.0
    is_binary: bool = False


CASES = {
    **{
        f"{seeds} seeds, {name}": Case(seeds=seeds, of_seeds=a, of_images=b)
        for seeds in (3, 5, 8)
        for name, a, b in (
            ("mostly seeds", 0.8, 0.15),
            ("seeds and images", 0.45, 0.45),
            ("mostly images", 0.15, 0.8),
        )
    },
    **{
        f"{seeds} seeds, {name}": Case(
            seeds=seeds, of_seeds=0.8, of_images=0.15, variant_factor=v, baseline_factor=b
        )
        for seeds in (3, 5)
        for name, v, b in (
            ("one loud variant", 16.0, 1.0),
            ("loud baseline", 1.0, 9.0),
            ("very loud baseline", 1.0, 100.0),
        )
    },
    "8 seeds, right or wrong": Case(seeds=8, of_seeds=0.2, of_images=0.7, is_binary=True),
}


def draw(case: Case, random: np.random.Generator) -> Table:
    """Return the differences of each variant from the baseline, (VARIANTS, S, IMAGES)."""
    shape = (VARIANTS + 1, case.seeds, IMAGES)
    error = MARGIN / 3 / 2**0.5  # of the mean score of one variant
    parts = (case.of_seeds, case.of_images, 1 - case.of_seeds - case.of_images)
    sizes = ((*shape[:2], 1), (shape[0], 1, IMAGES), shape)
    scores: Table = np.zeros(shape)
    loud = np.ones((VARIANTS + 1, 1, 1))
    loud[:2, 0, 0] = case.baseline_factor**0.5, case.variant_factor**0.5
    for part, size, factor in zip(parts, sizes, (loud, np.ones(1), loud), strict=True):
        spread = (part * np.prod(size[1:])) ** 0.5 * error
        scores += factor * random.normal(0, spread, size)
    if case.is_binary:  # an image is right if its score is above that of its difficulty
        difficulty = random.normal(0, 3 * scores.std(), IMAGES)
        scores = np.where(scores > difficulty, 100.0, 0.0)
    return scores[1:] - scores[0]


def joint_errors(tables: Table) -> tuple[list[MeanError], list[MeanError]]:
    """Return the errors of the mean differences: by the seeds of each row, and pooled."""
    found = [cross(table) for table in tables]
    pool = pool_seed_variance([list(table.mean(1)) for table in tables])
    return [MeanError.of_images(row) for row in found], [
        MeanError.of_images(row, pool) for row in found
    ]


def looks(tables: Table) -> list[list[Look]]:
    """Return the only look at each variant, with all planned seeds."""
    own, pooled = joint_errors(tables)
    return [
        [
            Look(
                pairs=len(table),
                own=first,
                pooled=second,
                planned=tables.shape[1],
                num_tests=VARIANTS,
                differences=[rounded(difference) for difference in table.mean(1)],
            )
        ]
        for table, first, second in zip(tables, own, pooled, strict=True)
    ]


def holds(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]


def one_study(case: Case, random: np.random.Generator) -> dict[str, list[bool]]:
    """Return what is right and what is wrong in one study without true differences."""
    tables = draw(case, random)
    own, pooled = joint_errors(tables)
    whole, joint = level(case.seeds, case.seeds), level(case.seeds, case.seeds, ALPHA / VARIANTS)
    own_hold, pooled_hold = ([holds(row.interval(joint)) for row in rows] for rows in (own, pooled))
    lucky = [i for i, row in enumerate(own) if row.seed_share < LUCKY]
    near = looks(tables + MARGIN)
    return {
        "interval": [holds(cross(tables[0]).interval(whole))],
        "joint": [all(own_hold)],
        "pooled": [all(pooled_hold)],
        "lucky_joint": [own_hold[i] for i in lucky],
        "lucky_pooled": [pooled_hold[i] for i in lucky],
        "different": [any(row.pairs for row in find_differences(looks(tables), VARIANTS))],
        "equivalent": [any(find_equivalent(near, VARIANTS, MARGIN))],
    }


def measure(case: Case, studies: int) -> dict[str, float]:
    """Return the shares of one case."""
    random = np.random.default_rng(0)
    found = [one_study(case, random) for _ in range(studies)]
    every = {name: [hold for each in found for hold in each[name]] for name in found[0]}
    shares = {name: float(np.mean(holds)) for name, holds in every.items() if len(holds) >= FEWEST}
    if case.is_binary:  # a difference of right answers cannot be raised by the margin
        del shares["equivalent"]
    return shares


def run(
    name: str,
    description: str | None,
    cases: Mapping[str, Any],
    measure: Callable[[Any, int], dict[str, float]],
    studies: int,
) -> None:
    """Measure all cases of a simulation of studies, and write its result file."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-o", "--output", type=Path, default=RESULT.with_name(f"{name}.json"))
    parser.add_argument("--studies", type=int, default=studies)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for case_name, case in cases.items():
        results[case_name] = measure(case, options.studies)
        print(case_name, results[case_name], flush=True)  # noqa: T201
    content = {
        "command": f"python -m experiments.statistics.{name}",
        "date": date.today().isoformat(),
        "commit": source_commit()[0],
        "studies": options.studies,
        "images": IMAGES,
        "cases": {case_name: asdict(case) for case_name, case in cases.items()},
        "results": results,
    }
    options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    run("simulation", __doc__, CASES, measure, 10_000)
