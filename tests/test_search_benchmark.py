"""The benchmark of the samplers, on tables whose structure is known."""

import json

import numpy as np
import pytest

from experiments.search import benchmark
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.records import SearchTrial, save_trial
from vitcli.runner.search.space import point_key

REPETITIONS = 16


@pytest.fixture(scope="module")
def search():
    return load_search(benchmark.NAME)


@pytest.fixture(scope="module")
def additive(search) -> benchmark.Table:
    """A table in which each field adds to the score by itself, and nothing else does."""
    values = {field: each.values for field, each in search.space.parameters.items()}
    weights = dict(zip(values, (1.0, 0.8, 0.6, 0.4, 0.2), strict=True))
    return {
        point_key(point): sum(weights[f] * values[f].index(value) for f, value in point.items())
        for point in search.space.points()
    }


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "SAMPLERS", ("random", "evolution"))
    monkeypatch.setattr(benchmark, "BUDGETS", (20, 40))


def test_evolution_wins_where_fields_add_up(search, additive, quick):
    found = benchmark.repeat(search, additive, REPETITIONS, shuffle=False)
    rows = benchmark.summary(found, additive)["40"]
    assert rows["evolution"]["low"] > 0
    assert rows["evolution"]["regret"] < 0.5 * rows["random"]["regret"]


def test_no_sampler_wins_on_a_shuffled_table(search, additive, quick):
    found = benchmark.repeat(search, additive, REPETITIONS, shuffle=True)
    rows = benchmark.summary(found, additive)["40"]
    assert rows["evolution"]["low"] < 0 < rows["evolution"]["high"]
    assert not benchmark.verdicts({"40": rows}, {"40": rows})["beats_random_at"]["evolution"]


def test_a_cheat_on_a_shuffled_table_is_found_out(search, additive, quick):
    """The control would show a sampler that knows the scores."""
    found = benchmark.repeat(search, additive, REPETITIONS, shuffle=True)
    found["evolution"] = {budget: [max(additive.values())] * REPETITIONS for budget in (20, 40)}
    rows = benchmark.summary(found, additive)
    assert not benchmark.verdicts(rows, rows)["shuffled_ties"]


def test_tpe_learns_too_and_every_sampler_counts_each_configuration_once(search, additive):
    for name in benchmark.SAMPLERS:
        chosen = benchmark.with_fields(search, search.fields.replace(sampler=name))
        best = benchmark.best_so_far(chosen, additive, 30)
        assert len(best) == 30
        assert best == sorted(best)
        assert best == benchmark.best_so_far(chosen, additive, 30), "a function of the seed"


def test_random_and_evolution_begin_with_the_same_points(search, additive):
    first = [
        benchmark.best_so_far(
            benchmark.with_fields(search, search.fields.replace(sampler=name)), additive, 10
        )
        for name in ("random", "evolution")
    ]
    assert first[0] == first[1], "so they are compared in pairs"


def test_a_shuffled_table_has_the_same_scores_elsewhere(additive):
    mixed = benchmark.shuffled(additive, 0)
    assert sorted(mixed.values()) == sorted(additive.values())
    assert mixed != additive
    assert mixed != benchmark.shuffled(additive, 1)


def test_the_table_is_read_from_saved_trials_without_the_repeats(search, tmp_path):
    for i, point in enumerate(search.space.points()):
        for seed in (0, 1) if i < 3 else (0,):
            trial = SearchTrial(
                point=point,
                config_hash=f"{i:012x}" + 52 * "0",
                seed=seed,
                state="finished",
                score=0.1 + 0.001 * i + 0.01 * seed,
                parameters=1,
                forward_flops=1,
            )
            save_trial(tmp_path, search.name, trial)
    table = benchmark.read_table(search, tmp_path)
    assert len(table) == 288
    assert max(table.values()) == pytest.approx(0.1 + 0.287)
    sd, count = benchmark.noise(tmp_path)
    assert count == 3
    assert sd == pytest.approx(0.01 / np.sqrt(2))


def test_a_table_that_is_not_there_names_the_command_that_makes_it(search, tmp_path):
    with pytest.raises(SystemExit, match=r"has 0 scores, too few; make them: vitcli search search"):
        benchmark.measure(search, tmp_path, 1)


def test_the_committed_benchmark_meets_its_claims():
    if not benchmark.RESULT.exists():
        pytest.skip("not measured yet: python -m experiments.search.benchmark")
    stored = json.loads(benchmark.RESULT.read_text())
    assert stored["repetitions"] >= 200
    assert stored["configurations"] >= 192
    assert stored["repeated_configurations"] >= 20
    assert stored["verdicts"]["beats_random_at"]["evolution"]
    assert stored["verdicts"]["shuffled_ties"]
