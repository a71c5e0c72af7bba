"""The tables of docs/interactions.md say what the scores of a made-up factorial study say."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "experiments" / "results" / "ablation-factorial.json"
SIZES = {"no-ffn": -10.0, "single-head": -5.0}
INTERACTION = 4.0
"""Of these two parts; no other part changes the score."""


@pytest.fixture
def tables(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    module = importlib.import_module("factorial_tables")
    monkeypatch.setattr(module, "document", lambda name: made())
    return module


def made(**scores: float) -> StudyResult:
    """The committed study with scores by formula; ``scores`` replaces those of a variant."""
    doc = read_document(RESULT.read_text())
    rows = []
    for i, row in enumerate(doc.rows):
        cell = set(row.variant.split("+"))
        score = 60 + sum(size for part, size in SIZES.items() if part in cell)
        score = scores.get(row.variant, score + INTERACTION * (cell >= SIZES.keys()))
        noise = 0.1 if i % 2 else -0.1
        middle = (len(row.trials) - 1) / 2  # so that the noise of a cell sums to 0
        trials = [
            trial.replace(test_accuracy=(score + (middle - k) * noise) / 100)
            for k, trial in enumerate(row.trials)
        ]
        rows.append(row.replace(trials=trials))
    return doc.replace(rows=rows)


def test_the_clear_interaction_has_both_effects_and_its_sign(tables):
    lines = tables.interactions("any").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:3] == "| `"]
    assert [row[:2] for row in rows] == [["`single-head`", "`no-ffn`"]]
    without, with_it, both = rows[0][2:5]
    assert (without, with_it) == ("-5.00", "-1.00")
    assert re.fullmatch(r"\+4\.00 \[\+3\.\d\d, \+4\.\d\d\]", both)
    (rest,) = (line for line in lines if line.startswith("- Undecided"))
    assert rest.count(" x ") == 9
    # Squares of the effects: (10 - 2)^2 + (5 - 2)^2 = 73 of the parts alone, (4 / 2)^2 = 4 of both.
    assert "the single parts explain 95 %, interactions of two parts 5 %" in lines[-1]


def test_a_change_beside_another_one(tables):
    shown = tables.beside("any", "single-head")
    assert re.search(r"^\| none \| .* \| -5\.00 \|$", shown, re.M)
    assert re.search(r"^\| `no-ffn` \| .* \| -1\.00 \|$", shown, re.M)


def test_a_cell_at_chance_level_has_no_place_on_the_scale_without_a_floor(tables, monkeypatch):
    assert "interactions remain" in tables.interactions("any")
    monkeypatch.setattr(tables, "document", lambda name: made(baseline=10.0))
    assert "A trial is not above chance level" in tables.interactions("any")
