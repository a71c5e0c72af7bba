"""The benchmark of the samplers, on tables whose structure is known."""

import json
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import create_trial

from experiments.search import benchmark
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import make_folder
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.samplers import distributions
from vitcli.runner.search.space import point_key
from vitcli.runner.search.storage import Place
from vitcli.runner.search.trial import RESULT, SearchTrial

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
        chosen = replace(search, fields=search.fields.replace(sampler=name))
        best = benchmark.best_so_far(chosen, additive, 30)
        assert len(best) == 30
        assert best == sorted(best)
        assert best == benchmark.best_so_far(chosen, additive, 30), "a function of the seed"


def test_random_and_evolution_begin_with_the_same_points(search, additive):
    first = [
        benchmark.best_so_far(
            replace(search, fields=search.fields.replace(sampler=name)), additive, 10
        )
        for name in ("random", "evolution")
    ]
    assert first[0] == first[1], "so they are compared in pairs"


def test_a_shuffled_table_has_the_same_scores_elsewhere(additive):
    mixed = benchmark.shuffled(additive, 0)
    assert sorted(mixed.values()) == sorted(additive.values())
    assert mixed != additive
    assert mixed != benchmark.shuffled(additive, 1)


def save(folder, search, scores: dict[tuple[int, int], float]) -> None:
    """Write a journal of the grid; ``scores`` maps (number of a point, seed) to a score."""
    points, name = [*search.space.points()], search.study_name()
    place = Place(root=folder, name=search.name, save=folder)
    make_folder(place.journal.parent)
    storage = JournalStorage(JournalFileBackend(str(place.journal)))
    studies = [
        optuna.create_study(storage=storage, study_name=each, direction="maximize")
        for each in (name, f"{name}-repeats")
    ]
    for (i, seed), score in scores.items():
        result = SearchTrial(
            point={},
            config_hash=config_hash(search.spec(points[i])),
            seed=seed,
            state="finished",
            score=score,
            parameters=1,
            forward_flops=1,
        )
        trial = create_trial(
            value=score,
            params=points[i],
            distributions=distributions(search.space),
            user_attrs={RESULT: result.model_dump(mode="json", exclude={"point"})},
        )
        studies[seed != search.base.seed].add_trial(trial)


def test_the_table_is_read_from_the_journal_of_the_grid(search, tmp_path):
    scores = {(i, 0): 0.1 + 0.001 * i for i in range(5)}
    save(tmp_path, search, scores | {(i, 1): 0.11 + 0.001 * i for i in range(3)})
    trials = benchmark.read_trials(search, tmp_path)
    table = benchmark.make_table(search, trials)
    assert sorted(table.values()) == pytest.approx([0.1, 0.101, 0.102, 0.103, 0.104])
    sd, count = benchmark.noise(trials)
    assert count == 3
    assert sd == pytest.approx(0.01 / np.sqrt(2))


def test_a_table_with_a_gap_names_the_command_that_fills_it(search, tmp_path):
    save(tmp_path, search, {(0, 0): 0.5})
    with pytest.raises(SystemExit, match=r"has 1 of 288 trials; make the others: vitcli search se"):
        benchmark.measure(search, tmp_path, 1)


def test_the_text_says_who_beats_random_search_and_who_does_not(search, additive, quick):
    found = benchmark.summary(benchmark.repeat(search, additive, 4, shuffle=False), additive)
    found["20"]["evolution"]["low"], found["40"]["evolution"]["low"] = -0.1, 0.1
    verdicts = benchmark.verdicts(found, found)
    shown = {
        "configurations": 288,
        "repetitions": 4,
        "scores": {"best": 1.0, "sd": 0.1},
        "seed_sd": 0.1,
        "table": found,
        "shuffled": found,
    }
    text = benchmark.text(shown | {"verdicts": verdicts})
    assert "evolution beats random search at budgets 40 (95 %" in text
    found["40"]["evolution"]["low"] = -0.1
    text = benchmark.text(shown | {"verdicts": benchmark.verdicts(found, found)})
    assert "evolution beats random search at no budget" in text


def test_the_committed_benchmark_meets_its_claims():
    stored = json.loads(benchmark.RESULT.read_text())
    assert stored["repetitions"] >= 200
    assert stored["configurations"] >= 192
    assert stored["repeated_configurations"] >= 20
    assert stored["verdicts"]["beats_random_at"] == {
        name: [*benchmark.BUDGETS] for name in ("evolution", "tpe")
    }
    assert stored["verdicts"]["shuffled_ties"]
