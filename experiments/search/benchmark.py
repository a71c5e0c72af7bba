"""Do the samplers of `vitcli search` beat random search? Measured on a table of all scores.

The table has the score of every configuration of a grid, from the journal of `vitcli search
search-grid`. The committed journal is that of a search of vitcli 1.0, which also trained 20
configurations with further seeds. A search on the table looks scores up, so hundreds of searches
take minutes. Each repetition runs every sampler with the same seed, so the samplers are compared in
pairs; the first points of evolution are those of random search. On a shuffled table nothing can be
learnt: a sampler that is better there has seen the scores.

    python -m experiments.search.benchmark
    python -m experiments.search.benchmark --repetitions 20 --output /tmp/short.json
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from scipy.stats import t as student

from vitcli.plugins.search.definition import Search, load_search, point_key
from vitcli.plugins.search.trials import MAX_REJECTED, distributions, make_sampler
from vitcli.runner.files import commit, sha256, to_hashed_json

FOLDER = Path(__file__).parent
JOURNAL, RESULT = FOLDER / "trials/search-grid/search.journal", FOLDER / "benchmark.json"
NAME = "search-grid"
SAMPLERS = ("random", "evolution", "tpe")
BUDGETS = (20, 40, 80)
REPETITIONS = 200
CONTROL = 3
"""Repetitions on shuffled tables for each one on the table: chance must be well below ``TIE``."""
TIE = 0.1
"""Largest difference on the shuffled table, in standard deviations of the table's scores."""

Table = dict[str, float]
"""``point_key`` -> score."""


def read_scores(journal: Path) -> tuple[Table, list[list[float]]]:
    """Return the scores of the grid, and those of each configuration with several seeds."""
    storage = JournalStorage(JournalFileBackend(str(journal)))
    studies = [
        optuna.load_study(study_name=name, storage=storage)
        for name in optuna.get_all_study_names(storage)
    ]
    scores: dict[str, list[float]] = {}
    for study in sorted(studies, key=lambda study: study.study_name.endswith("-repeats")):
        for trial in study.get_trials(states=(TrialState.COMPLETE,)):
            scores.setdefault(point_key(trial.params), []).append(float(trial.value or 0.0))
    table = {key: values[0] for key, values in scores.items()}
    return table, [values for values in scores.values() if len(values) > 1]


def noise(repeated: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation over seeds, pooled over the repeated configurations."""
    freedom = sum(len(scores) - 1 for scores in repeated)
    total = sum(np.var(scores, ddof=1) * (len(scores) - 1) for scores in repeated)
    return float(np.sqrt(total / freedom)) if freedom else 0.0


def shuffled(table: Table, seed: int) -> Table:
    """Return the table with its scores in random order."""
    order = np.random.default_rng([seed, 1]).permutation(len(table))
    scores = list(table.values())
    return {key: scores[i] for key, i in zip(table, order, strict=True)}


def best_so_far(search: Search, table: Table, budget: int) -> list[float]:
    """Return the best score after each of ``budget`` evaluations of one search on the table.

    A point that is not in the table, or that was evaluated before, is skipped and does not count,
    as in a search that trains.
    """
    study, space = optuna.create_study(direction="maximize"), distributions(search.fields)
    best: list[float] = []
    seen: set[str] = set()
    number = rejected = 0
    while len(best) < min(budget, len(table)):
        is_stuck = rejected >= MAX_REJECTED
        study.sampler = make_sampler(search.fields, space, number, is_stuck=is_stuck)
        trial = study.ask(space)
        key, number = point_key(trial.params), number + 1
        if key not in table or key in seen:
            study.tell(trial, state=TrialState.FAIL)
            rejected += 1
            continue
        seen.add(key)
        study.tell(trial, table[key])
        best.append(max(table[key], best[-1] if best else -np.inf))
        rejected = 0
    return best


def repeat(search: Search, table: Table, repetitions: int, *, shuffle: bool) -> dict[str, Any]:
    """Return sampler -> budget -> the best score of each repetition."""
    found: dict[str, Any] = {name: {budget: [] for budget in BUDGETS} for name in SAMPLERS}
    for seed in range(repetitions):
        scores = shuffled(table, seed) if shuffle else table
        for name in SAMPLERS:
            fields = search.fields.replace(sampler=name, seed=seed, trials=max(BUDGETS))
            chosen = replace(search, fields=fields)
            best = best_so_far(chosen, scores, max(BUDGETS))
            for budget in BUDGETS:
                found[name][budget].append(best[min(budget, len(best)) - 1])
    return found


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95 % t interval."""
    values = np.asarray(differences)
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    width = float(student.ppf(0.975, len(values) - 1)) * error
    return mean, mean - width, mean + width


def summary(found: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return for each budget the mean score and regret of each sampler, and the paired differences.

    Differences are from random search, in points and in standard deviations of the table.
    """
    top, spread = max(table.values()), pstdev(table.values())
    out: dict[str, Any] = {}
    for budget in BUDGETS:
        rows = {}
        for name in SAMPLERS:
            best = found[name][budget]
            pairs = [a - b for a, b in zip(best, found["random"][budget], strict=True)]
            row: dict[str, Any] = {"best": fmean(best), "regret": top - fmean(best)}
            if name != "random":
                mean, low, high = interval(pairs)
                row |= {"difference": mean, "low": low, "high": high, "in_sd": mean / spread}
            rows[name] = row
        out[str(budget)] = rows
    return out


def verdicts(real: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the numbers say: who beats random search where, and whether the control ties."""
    others = [name for name in SAMPLERS if name != "random"]
    beats = {
        name: [int(budget) for budget, rows in real.items() if rows[name]["low"] > 0]
        for name in others
    }
    largest = max(abs(rows[name]["in_sd"]) for rows in control.values() for name in others)
    return {
        "beats_random_at": beats,
        "largest_difference_shuffled_sd": largest,
        "shuffled_ties": largest <= TIE,
    }


def measure(search: Search, journal: Path, repetitions: int) -> dict[str, Any]:
    """Return the whole benchmark as data for JSON."""
    table, repeated = read_scores(journal)
    if len(table) < search.fields.size:
        raise SystemExit(f"{journal} has {len(table)} of {search.fields.size} trials")
    real = summary(repeat(search, table, repetitions, shuffle=False), table)
    control = summary(repeat(search, table, CONTROL * repetitions, shuffle=True), table)
    fields = search.fields
    return {
        "search": search.name,
        "configurations": len(table),
        "table_sha256": sha256(json.dumps(sorted(table.items())).encode()),
        "repetitions": repetitions,
        "population": fields.population,
        "sample_size": fields.sample_size,
        "scores": {"best": max(table.values()), "sd": pstdev(table.values())},
        "seed_sd": noise(repeated),
        "repeated_configurations": len(repeated),
        "table": real,
        "shuffled": control,
        "verdicts": verdicts(real, control),
    }


def text(result: Mapping[str, Any]) -> str:
    """Return the result as a table for people."""
    lines = [
        f"{result['configurations']} configurations, {result['repetitions']} repetitions;"
        f" scores: best {result['scores']['best']:.4f}, SD {result['scores']['sd']:.4f};"
        f" SD over seeds {result['seed_sd']:.4f}",
        "table     budget  sampler    best    regret  minus random [95 %]",
    ]
    for part in ("table", "shuffled"):
        for budget, rows in result[part].items():
            for name, row in rows.items():
                line = f"{part:<9} {budget:>6}  {name:<9}  {row['best']:.4f}  {row['regret']:.4f}"
                if "low" in row:
                    line += f"  {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
                lines.append(line)
    found = result["verdicts"]
    for name, budgets in found["beats_random_at"].items():
        where = f"at budgets {', '.join(map(str, budgets))}" if budgets else "at no budget"
        lines.append(f"{name} beats random search {where} (95 % interval above 0)")
    shuffled_by = found["largest_difference_shuffled_sd"]
    lines.append(f"shuffled: largest difference {shuffled_by:.3f} SD (tie below {TIE})")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, print it and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="journal of the grid")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    result = measure(load_search(NAME), given.journal, given.repetitions)
    commit(given.output, to_hashed_json(result))
    sys.stdout.write(f"{text(result)}\n")


if __name__ == "__main__":
    main()
