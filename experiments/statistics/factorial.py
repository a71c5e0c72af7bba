"""Measure how often the tests of a factorial study find an effect although there is none.

Random studies of five parts are drawn, as `ablation-factorial` is: 32 cells, each with the same
seeds; the last case has two parts. No part has an effect in the mean. The cells differ in variance,
or each seed gives the parts other effects, as the cases say. One looks after each seed from 3 on.
Measured are
  exists       share of studies in which an effect exists
  interval     share of effects whose interval excludes 0, before any adjustment
  independent  share of effects with p <= 0.05, if the trainings of a seed were independent
By default all is written to experiments/results/statistics/factorial.json.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from vitcli.plugins.factorial.crossing import Cell, cells
from vitcli.plugins.factorial.effects import Effect, effects
from vitcli.runner.machine.device import source_commit
from vitcli.runner.study.significance import ALPHA

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "factorial.json"
PARTS = ("a", "b", "c", "d", "e")
CELLS = cells(PARTS)
Table = dict[Cell, dict[int, float]]


def is_wild(cell: Cell) -> bool:
    """Say whether a cell is one of four, as those of `single-head` and `no-residual` with norms."""
    return {"a", "b"} <= cell and "c" not in cell


@dataclass(frozen=True)
class Kind:
    """How the scores of a study vary beside its seeds."""

    variances: Sequence[float] = (1.0,) * len(CELLS)
    """Of the trainings of each cell."""
    part_by_seed: float = 0.0
    """Variance of what a part changes with one seed and not with another."""
    parts: Sequence[str] = PARTS


KINDS = {
    "equal variances": Kind(),
    "part x seed terms": Kind(part_by_seed=1.0),
    "part x seed terms of 9 times the variance": Kind(part_by_seed=9.0),
    "4 cells with 28 times the variance": Kind([28.0 if is_wild(cell) else 1.0 for cell in CELLS]),
    "1 cell with 100 times the variance": Kind([1.0 if cell else 100.0 for cell in CELLS]),
}
SEEDS = (3, 10)
"""Planned seeds. With ten, the sign flips can decide."""
CASES = {f"{seeds} seeds, {name}": (seeds, kind) for name, kind in KINDS.items() for seeds in SEEDS}
CASES["3 seeds, two parts, 1 of 4 cells with 10,000 times the variance"] = (
    3,
    Kind((10_000.0, 1.0, 1.0, 1.0), parts=PARTS[:2]),
)


def draw(seeds: int, kind: Kind, random: np.random.Generator) -> Table:
    """Return the scores of a study without any effect."""
    trained = cells(kind.parts)
    has_part = np.array([[part in cell for part in kind.parts] for cell in trained])
    by_part = random.normal(0, kind.part_by_seed**0.5, (len(kind.parts), seeds))
    errors = random.normal(0, 1, (len(trained), seeds)) * np.sqrt(kind.variances)[:, None]
    drawn = random.normal(0, 1, seeds) + has_part @ by_part + errors
    return {cell: dict(enumerate(row)) for cell, row in zip(trained, drawn.tolist(), strict=True)}


def independent(found: Sequence[Effect], table: Table) -> list[bool]:
    """Say which effects have p <= 0.05 with the variance that is left by cells and seeds."""
    scores = np.array([[*by_seed.values()] for by_seed in table.values()])
    left = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    freedom = (scores.shape[0] - 1) * (scores.shape[1] - 1)
    error = ((left**2).sum() / freedom / scores.size) ** 0.5
    limit = -special.stdtrit(freedom, ALPHA / 2)
    return [abs(each.value) > limit * 2 ** len(each.parts) * error for each in found]


def excludes_zero(effect: Effect) -> bool:
    return effect.low is None or effect.high is None or not effect.low <= 0 <= effect.high


def one_study(table: Table, seeds: int, parts: Sequence[str]) -> dict[str, float]:
    """Return what is found in a study without any effect."""
    found = effects(parts, table, seeds)
    return {
        "exists": any(each.decided_at for each in found),
        "interval": float(np.mean([excludes_zero(each) for each in found])),
        "independent": float(np.mean(independent(found, table))),
    }


def measure(name: str, studies: int) -> dict[str, float]:
    """Return the shares of one case."""
    seeds, kind = CASES[name]
    random = np.random.default_rng(0)
    found = [one_study(draw(seeds, kind, random), seeds, kind.parts) for _ in range(studies)]
    return {key: round(float(np.mean([each[key] for each in found])), 4) for key in found[0]}


def document(results: dict[str, Any], studies: int) -> dict[str, Any]:
    """Return the content of the result file."""
    return {
        "command": "python -m experiments.statistics.factorial",
        "date": date.today().isoformat(),
        "commit": source_commit()[0],
        "studies": studies,
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--studies", type=int, default=2000)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in CASES:
        results[name] = measure(name, options.studies)
        print(name, results[name], flush=True)  # noqa: T201
    options.output.write_text(json.dumps(document(results, options.studies), indent=1) + "\n")


if __name__ == "__main__":
    main()
