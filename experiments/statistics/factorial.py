"""Measure how often the tests of a factorial study find an effect although there is none.

Random studies of five parts are drawn, as `ablation-factorial` is: 32 cells, each with the same
seeds. No part has an effect. The cells differ in variance, as the cases say. Measured are
  single     share of effects with p <= 0.05, before any adjustment
  any        share of studies in which an effect has p <= 0.05 after Holm's method
  pooled     ``single``, if one variance is assumed for all cells
By default all is written to experiments/results/statistics/factorial.json.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from vitcli.plugins.factorial.crossing import Cell, cells
from vitcli.plugins.factorial.effects import Effect, effects
from vitcli.runner.machine.device import source_commit
from vitcli.runner.study.result import MIN_PAIRS
from vitcli.runner.study.significance import ALPHA

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "factorial.json"
PARTS = ("a", "b", "c", "d", "e")
CELLS = cells(PARTS)
Table = dict[Cell, dict[int, float]]


def is_wild(cell: Cell) -> bool:
    """Say whether a cell is one of four, as those of `single-head` and `no-residual` with norms."""
    return {"a", "b"} <= cell and "c" not in cell


VARIANCES = {
    "equal variances": [1.0 for _ in CELLS],
    "4 cells with 28 times the variance": [28.0 if is_wild(cell) else 1.0 for cell in CELLS],
    "1 cell with 100 times the variance": [1.0 if cell else 100.0 for cell in CELLS],
}
SEEDS = (2, 4)
CASES = {
    f"{seeds} seeds, {name}": (seeds, variances)
    for name, variances in VARIANCES.items()
    for seeds in SEEDS
}


def draw(seeds: int, variances: Sequence[float], random: np.random.Generator) -> Table:
    """Return the scores of a study without any effect."""
    blocks = random.normal(0, 1, seeds)
    errors = random.normal(0, 1, (len(CELLS), seeds)) * np.sqrt(variances)[:, None]
    rows = zip(CELLS, (blocks + errors).tolist(), strict=True)
    return {cell: dict(enumerate(row)) for cell, row in rows}


def pooled(found: Sequence[Effect], seeds: int) -> list[bool]:
    """Say which effects have p <= 0.05 if all cells have the same variance.

    The variance of an effect is then the same number; only its degrees of freedom differ.
    """
    limit = -special.stdtrit((len(CELLS) - 1) * (seeds - 1), ALPHA / 2)
    errors = [abs(e.value / special.stdtrit(e.freedom, e.p / 2)) for e in found]
    return [abs(e.value) > limit * s for e, s in zip(found, errors, strict=True)]


def one_study(table: Table, seeds: int) -> dict[str, float]:
    """Return what is found in a study without any effect."""
    found = effects(PARTS, table, max(MIN_PAIRS, seeds))
    return {
        "single": float(np.mean([each.p <= ALPHA for each in found])),
        "any": any(each.p_holm <= ALPHA for each in found),
        "pooled": float(np.mean(pooled(found, seeds))),
    }


def measure(name: str, studies: int) -> dict[str, float]:
    """Return the shares of one case."""
    seeds, variances = CASES[name]
    random = np.random.default_rng(0)
    found = [one_study(draw(seeds, variances, random), seeds) for _ in range(studies)]
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
