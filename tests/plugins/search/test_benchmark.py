"""The benchmark of the samplers, which can fail."""

from experiments.search import benchmark
from vitcli.plugins.search.definition import load_search, point_key


def additive_table(search) -> benchmark.Table:
    values = {field: values.choices for field, values in search.fields.space.items()}
    weights = dict(zip(values, (1.0, 0.8, 0.6, 0.4, 0.2), strict=True))
    return {
        point_key(point): sum(weights[f] * values[f].index(value) for f, value in point.items())
        for point in search.fields.points()
    }


def test_evolution_wins_where_fields_add_up_and_on_no_shuffled_table(monkeypatch):
    search = load_search(benchmark.NAME)
    additive = additive_table(search)
    monkeypatch.setattr(benchmark, "SAMPLERS", ("random", "evolution"))
    monkeypatch.setattr(benchmark, "BUDGETS", (20, 40))
    found = benchmark.repeat(search, additive, 16, shuffle=False)
    rows = benchmark.summary(found, additive)["40"]
    assert rows["evolution"]["low"] > 0
    assert rows["evolution"]["regret"] < 0.5 * rows["random"]["regret"]
    found = benchmark.repeat(search, additive, 16, shuffle=True)
    rows = benchmark.summary(found, additive)
    assert rows["40"]["evolution"]["low"] < 0 < rows["40"]["evolution"]["high"]
    # The control would show a sampler that knows the scores.
    found["evolution"] = {budget: [max(additive.values())] * 16 for budget in (20, 40)}
    rows = benchmark.summary(found, additive)
    assert not benchmark.verdicts(rows, rows)["shuffled_ties"]
