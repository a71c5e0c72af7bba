"""How often are the statistics of a study right? Random studies whose truth is known.

Usage: python -m experiments.statistics.simulation [-o FILE] [--studies N] [--bootstraps N]
Scores are drawn from the model of the headline interval: seeds, test images and their interaction
are normal. Each case has a number of seeds, and the share of the variance of a mean difference that
comes from the seeds, from the images, and from their interaction. The last case has wrong and right
answers instead. A study has a baseline and five variants; their true differences are 0, or the
margin of equivalence. Measured are
  interval    how often the 95 % interval holds the true difference
  joint       how often all five joint intervals do
  bootstrap   how often the 95 % interval of the crossed bootstrap does, in --bootstraps studies
  different   share of studies in which a row is called better or worse, although none is
  equivalent  share of studies in which a row is called equivalent, although all lie at the margin
By default all is written to experiments/results/statistics/simulation.json.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcli.runner.machine.device import source_commit
from vitcli.runner.study.crossed import bootstrap_interval, cross
from vitcli.runner.study.significance import ALPHA, holm, seeds_needed, sign_flip_p
from vitcli.runner.study.verdicts import effect

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "simulation.json"
VARIANTS, IMAGES = 5, 200
MARGIN = 1.0
"""The margin of equivalence; the standard error of a difference is a third of it."""
Table = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Number of seeds, and the parts of the variance of a difference."""

    seeds: int
    of_seeds: float
    of_images: float
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
    "8 seeds, right or wrong": Case(seeds=8, of_seeds=0.2, of_images=0.7, is_binary=True),
}


def draw(case: Case, random: np.random.Generator) -> Table:
    """Return the differences of each variant from the baseline, (VARIANTS, S, IMAGES)."""
    shape = (VARIANTS + 1, case.seeds, IMAGES)
    error = MARGIN / 3 / 2**0.5  # of the mean score of one variant
    parts = (case.of_seeds, case.of_images, 1 - case.of_seeds - case.of_images)
    sizes = ((*shape[:2], 1), (shape[0], 1, IMAGES), shape)
    scores: Table = np.zeros(shape)
    for part, size in zip(parts, sizes, strict=True):
        spread = (part * np.prod(size[1:])) ** 0.5 * error
        scores += random.normal(0, spread, size)
    if case.is_binary:  # an image is right if its score is above that of its difficulty
        difficulty = random.normal(0, 3 * scores.std(), IMAGES)
        scores = np.where(scores > difficulty, 100.0, 0.0)
    return scores[1:] - scores[0]


def judge_rows(tables: Table, shift: float) -> list[str]:
    """Return the effect of each variant whose differences are raised by ``shift``."""
    found = [cross(table + shift) for table in tables]
    p_values: list[float | None] = []
    for each, table in zip(found, tables, strict=True):
        p = 2 * each.tail(abs(each.mean))
        if p <= ALPHA:  # the larger p counts, so the sign flips matter only here
            p = max(p, sign_flip_p(np.round(table.mean(1) + shift, 9).tolist()))
        p_values.append(p if tables.shape[1] >= seeds_needed(VARIANTS) else None)
    same = [each.tail(MARGIN - abs(each.mean)) for each in found]
    rows = zip(found, holm(p_values, VARIANTS), holm(same, VARIANTS), strict=True)
    return [effect(each.mean, p, q, higher_is_better=True) for each, p, q in rows]


def holds(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]


def one_study(case: Case, random: np.random.Generator) -> dict[str, bool]:
    """Return what is right and what is wrong in one study without true differences."""
    tables = draw(case, random)
    found = [cross(table) for table in tables]
    effects = judge_rows(tables, 0.0)
    return {
        "interval": holds(found[0].interval(ALPHA)),
        "joint": all(holds(each.careful_interval(ALPHA / VARIANTS)) for each in found),
        "different": any(each.startswith(("better", "worse")) for each in effects),
        "equivalent": any("equivalent" in each or "within" in each for each in shifted(tables)),
    }


def shifted(tables: Table) -> list[str]:
    """Return the effects if every variant is better by the margin."""
    return judge_rows(tables, MARGIN)


def bootstraps(case: Case, count: int, random: np.random.Generator) -> Iterator[bool]:
    """Yield for each of ``count`` studies whether the interval of the bootstrap holds 0."""
    for _ in range(count):
        yield holds(bootstrap_interval(draw(case, random)[0], ALPHA))


def measure(case: Case, studies: int, num_bootstraps: int) -> dict[str, float]:
    """Return the shares of one case."""
    random = np.random.default_rng(0)
    found = [one_study(case, random) for _ in range(studies)]
    shares = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
    if case.is_binary:  # a difference of right answers cannot be raised by the margin
        del shares["equivalent"]
    if case.seeds < seeds_needed(VARIANTS):
        del shares["different"]  # there is no p-value
    return shares | {"bootstrap": float(np.mean([*bootstraps(case, num_bootstraps, random)]))}


def document(results: dict[str, Any], studies: int, num_bootstraps: int) -> dict[str, Any]:
    """Return the content of the result file."""
    return {
        "command": "python -m experiments.statistics.simulation",
        "date": date.today().isoformat(),
        "commit": source_commit()[0],
        "studies": studies,
        "bootstraps": num_bootstraps,
        "images": IMAGES,
        "cases": {name: asdict(CASES[name]) for name in results},
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument("--bootstraps", type=int, default=1000)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        results[name] = measure(case, options.studies, options.bootstraps)
        print(name, results[name], flush=True)  # noqa: T201
    content = document(results, options.studies, options.bootstraps)
    options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
