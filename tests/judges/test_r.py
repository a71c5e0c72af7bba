"""Judge: R with lme4, lmerTest and exactRankTests. They decide statistics.

The answers of R are stored in judged.json. Where R and its packages are here, they are made again.
The inputs of R are `Penicillin` of lme4, right answers of ablation-cifar10-tiny (the differences
no-positional-encoding minus baseline of seeds 0 to 7 and the first 1,000 test images), and R's own
`warpbreaks` (two wools, low and high tension; the nine looms of each stand for seeds).
"""

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.judges.conftest import Judge
from vitcli.plugins.factorial.effects import effects
from vitcli.runner.study.images import cross
from vitcli.runner.study.significance import sign_flip_p

JUDGE = Judge("R", "GPL-2 and GPL-3", "intervals, p-values and effects", of="4.2.2, lme4 1.1-31")
HERE = Path(__file__).parent
PACKAGES = ("lme4", "lmerTest", "exactRankTests", "jsonlite")
INPUTS = ("penicillin.csv", "predictions.csv", "factorial.csv")
JUDGED = json.loads((HERE / "judged.json").read_text())
NAMES = {
    "mean": "mean",
    "error": "standard error",
    "freedom": "degrees of freedom",
    "one": "variance of plates or seeds",
    "other": "variance of samples or images",
    "residual": "rest of the variance",
}


def rows_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((HERE / name).read_text().splitlines()))


def table(name: str) -> np.ndarray:
    rows = rows_of(name)
    ones, others = ([*dict.fromkeys(row[key] for row in rows)] for key in ("one", "other"))
    found = np.zeros((len(ones), len(others)))
    for row in rows:
        found[ones.index(row["one"]), others.index(row["other"])] = float(row["score"])
    return found


def r_has(*packages: str) -> bool:
    names = ",".join(f"'{package}'" for package in packages)
    check = f"q(status = !all(sapply(c({names}), requireNamespace, quietly = TRUE)))"
    try:
        return subprocess.run(["Rscript", "-e", check], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(each, f"{name}/{key}")
    elif not isinstance(value, str):
        yield name, value


@pytest.mark.judge
def test_r_gives_the_stored_answers():
    if not r_has(*PACKAGES):
        pytest.skip(f"R with {', '.join(PACKAGES)}: its stored answers were used")
    words = ["Rscript", "judge.R", *INPUTS]
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=True)
    assert dict(numbers(json.loads(done.stdout))) == pytest.approx(dict(numbers(JUDGED)), rel=1e-4)


@pytest.mark.parametrize("name", ["penicillin", "predictions"])
def test_the_two_way_interval_is_that_of_lmer(agree, name):
    found, judged = cross(table(f"{name}.csv")), JUDGED[name]
    by_one = (found.ms_seeds - found.ms_residual) / found.num_images
    by_other = (found.ms_images - found.ms_residual) / found.num_seeds
    ours = {
        **{"mean": found.mean, "error": found.error, "freedom": found.freedom},
        **{"one": by_one, "other": by_other, "residual": found.ms_residual},
    }
    for key, value in ours.items():
        agree(f"lme4, {name}.csv: {NAMES[key]}", value, judged[key], within=1e-3)


def test_sign_flips_are_those_of_exact_rank_tests(agree):
    ours = sign_flip_p([3, -1, 4, 1, 5, 9, 2, 6])
    agree("exactRankTests: p of sign flips", ours, JUDGED["flips"])


def test_effects_are_those_of_paired_tests_and_holm_of_p_adjust(agree):
    rows = rows_of("factorial.csv")
    parts = [key for key in rows[0] if key not in ("seed", "score")]
    scores: dict[frozenset[str], dict[int, float]] = {}
    for row in rows:
        cell = frozenset(part for part in parts if float(row[part]) > 0)
        scores.setdefault(cell, {})[int(row["seed"])] = float(row["score"])
    three = {cell: {seed: by_seed[seed] for seed in range(3)} for cell, by_seed in scores.items()}
    every, first = effects(parts, scores, planned=9), effects(parts, three, planned=3)
    judged = JUDGED["factorial"]
    assert [":".join(each.parts) for each in every] == [each["term"] for each in judged]
    compared = (
        ("t.test: mean of effects", every, "value", "value"),
        ("t.test: lower end of effects", first, "low", "low"),
        ("t.test: upper end of effects", first, "high", "high"),
        ("t.test and perm.test: p of effects", every, "p", "p"),
        ("p.adjust: p of effects, Holm", every, "p_holm", "holm"),
    )
    for what, found, ours, theirs in compared:
        agree(what, [getattr(e, ours) for e in found], [e[theirs] for e in judged], 1e-8)
