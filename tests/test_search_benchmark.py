"""The benchmark of the samplers, on a table whose structure is known."""

import json

from experiments.search import benchmark
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.space import point_key

REPETITIONS = 16


def additive_table(search) -> benchmark.Table:
    """Return a table in which each field adds to the score by itself, and nothing else does."""
    values = {field: each.values for field, each in search.space.parameters.items()}
    weights = dict(zip(values, (1.0, 0.8, 0.6, 0.4, 0.2), strict=True))
    return {
        point_key(point): sum(weights[f] * values[f].index(value) for f, value in point.items())
        for point in search.space.points()
    }


def test_evolution_wins_where_fields_add_up_and_on_no_shuffled_table(monkeypatch):
    search = load_search(benchmark.NAME)
    additive = additive_table(search)
    monkeypatch.setattr(benchmark, "SAMPLERS", ("random", "evolution"))
    monkeypatch.setattr(benchmark, "BUDGETS", (20, 40))
    found = benchmark.repeat(search, additive, REPETITIONS, shuffle=False)
    rows = benchmark.summary(found, additive)["40"]
    assert rows["evolution"]["low"] > 0
    assert rows["evolution"]["regret"] < 0.5 * rows["random"]["regret"]
    found = benchmark.repeat(search, additive, REPETITIONS, shuffle=True)
    rows = benchmark.summary(found, additive)
    assert rows["40"]["evolution"]["low"] < 0 < rows["40"]["evolution"]["high"]
    # The control would show a sampler that knows the scores.
    found["evolution"] = {budget: [max(additive.values())] * REPETITIONS for budget in (20, 40)}
    rows = benchmark.summary(found, additive)
    assert not benchmark.verdicts(rows, rows)["shuffled_ties"]


def test_the_committed_benchmark_meets_its_claims():
    stored = json.loads(benchmark.RESULT.read_text())
    assert stored["repetitions"] >= 200
    assert stored["configurations"] >= 192
    assert stored["repeated_configurations"] >= 20
    wins = {name: [*benchmark.BUDGETS] for name in ("evolution", "tpe")}
    assert stored["verdicts"]["beats_random_at"] == wins
    assert stored["verdicts"]["shuffled_ties"]
