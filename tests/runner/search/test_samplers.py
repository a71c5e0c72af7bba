"""Regularised evolution, as a sampler of Optuna, and the choice of a sampler."""

from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from tests.runner.search.made_up import write_search
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.samplers import (
    EvolutionSampler,
    distributions,
    make_sampler,
)


@pytest.fixture
def search(here):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 32, 48], model.num_heads: [1, 2]}"
    return load_search(write_search(space=space, sampler="evolution"))


def make_study(search, scores: list[float], direction: Any = "maximize"):
    """Return a study of different points with these scores, finished in this order."""
    study = optuna.create_study(direction=direction)
    for i, (point, score) in enumerate(zip(search.space.points(), scores, strict=False)):
        study.add_trial(
            create_trial(
                params=point,
                distributions=distributions(search.space),
                value=score,
                state=TrialState.COMPLETE,
            )
        )
        storage: Any = study._storage
        trial = storage._studies[0].trials[i]  # the time of the test must not matter
        trial.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=i)
    return study


def propose(search, study, seed: int, population: int = 4, sample: int = 4) -> dict:
    study.sampler = EvolutionSampler(distributions(search.space), population, sample, seed)
    trial = study.ask(distributions(search.space))
    study.tell(trial, state=TrialState.FAIL)
    return dict(trial.params)


def distance(one: dict, other: dict) -> int:
    return sum(one[field] != other[field] for field in one)


def test_a_child_differs_from_the_best_of_the_sample_in_one_field(search):
    study = make_study(search, [0.1, 0.2, 0.9, 0.3])
    best = study.trials[2].params
    changed = set()
    for seed in range(40):
        child = propose(search, study, seed)
        assert distance(child, best) == 1
        changed |= {field for field in child if child[field] != best[field]}
    assert changed == set(best), "every field mutates"


def test_the_oldest_die_even_the_best_of_them(search):
    study = make_study(search, [0.9, 0.1, 0.2, 0.3, 0.4])
    dead, heir = study.trials[0].params, study.trials[4].params
    children = [propose(search, study, seed) for seed in range(20)]
    assert all(distance(child, heir) == 1 for child in children)
    assert not all(distance(child, dead) == 1 for child in children)
    few = [propose(search, study, seed, sample=1) for seed in range(30)]
    assert max(distance(child, heir) for child in few) > 1, "a small sample gives others a chance"


def test_smaller_is_better_if_the_search_says_so(search):
    study = make_study(search, [0.9, 0.1, 0.2, 0.3], "minimize")
    assert all(
        distance(propose(search, study, seed), study.trials[1].params) == 1 for seed in range(10)
    )


def test_ranges_mutate_too(search):
    space = "{optim.lr: {low: 0.001, high: 0.1, log: true}, model.depth: {low: 1, high: 4}}"
    search = load_search(write_search(space=space, sampler="evolution"))
    study = optuna.create_study(direction="maximize")
    for lr, depth in ((0.01, 1), (0.02, 2), (0.03, 3), (0.04, 4)):
        params = {"optim.lr": lr, "model.depth": depth}
        known = distributions(search.space)
        study.add_trial(create_trial(params=params, distributions=known, value=float(depth)))
    children = [propose(search, study, seed) for seed in range(20)]
    best = {"optim.lr": 0.04, "model.depth": 4}
    assert {distance(child, best) for child in children} == {1}
    assert all(0.001 <= child["optim.lr"] <= 0.1 for child in children)


def test_every_name_of_a_sampler_has_a_sampler(search):
    names = {
        "random": "RandomSampler",
        "tpe": "TPESampler",
        "nsga2": "NSGAIISampler",
        "evolution": "EvolutionSampler",
    }
    space = distributions(search.space)
    for name, kind in names.items():
        fields = search.fields.replace(sampler=name)
        assert type(make_sampler(fields, space, 0)).__name__ == kind
        assert type(make_sampler(fields, space, 0, is_stuck=True)).__name__ == "RandomSampler"
