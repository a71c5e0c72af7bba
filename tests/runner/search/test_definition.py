"""Search files: what they may say, and the samplers that they name."""

from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from tests.runner.search.made_up import SPACE, write_search
from vitcli.runner.errors import ConfigError
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.samplers import EvolutionSampler, distributions
from vitcli.runner.search.trials import measure_parameters


def test_a_search_has_the_fields_of_its_file_and_of_its_base(here):
    search = load_search(write_search(seed="7", threads="2", sampler="evolution"))
    assert (search.name, search.question, search.num_trials) == ("made", "which is best?", 6)
    assert (search.base.data.name, search.base.data.val_split) == ("scenes", 1000)
    assert search.fields.seed == 7
    assert search.threads == 2
    assert search.space.size == 36
    spec = search.spec({"model.depth": 2, "model.embed_dim": 48, "model.num_heads": 2})
    assert (spec.model.depth, spec.model.embed_dim) == (2, 48)


def test_another_family_replaces_the_model_of_a_search(here):
    made = write_search(space="{optim.lr: [1.0e-3, 2.0e-3]}")
    search = load_search(made, {"model.family": "resnet18", "optim.name": "adamw"})
    assert search.base.model.family == "resnet18"
    assert search.note.startswith("model.family=resnet18 replaces the experiment's model by")
    assert load_search(made).note == ""


def lr(text: str) -> dict[str, str]:
    return {"space": f"{{optim.lr: {text}}}"}


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"trails": "3"}, "search.trails"),
    ({"final": "{seeds: [1]}"}, "search.final"),
    ({"space": "{model.dept: [1, 2]}"}, "depth"),
    (lr("[1]"), "optim.lr"),
    (lr("[1, 1]"), "optim.lr"),
    (lr("3"), "optim.lr"),
    (lr("{low: 2.0, high: 1.0}"), "optim.lr"),
    (lr("{low: 0, high: 1, log: true}"), "optim.lr"),
    (lr("{low: 1, hihg: 2}"), "high"),
    (lr("{low: 0.1, high: 0.2, step: 1.0}"), "optim.lr"),
    ({"space": "{model.depth: {low: 1, high: 4, step: 0.5}}"}, "model.depth"),
    ({"space": "{data.augment.policy: [[1], [2]]}"}, "policy"),
    *(
        ({"space": f"{{{name}: [1, 2]}}"}, f"cannot vary {name!r}")
        for name in ("seed", "data.val_split", "task.name", "train.init")
    ),
    ({"space": "{}"}, "search.space"),
    ({"sampler": "nsga2"}, "search.sampler"),
    ({"sampler": "evolution", "population": "3"}, "search.population"),
    ({"trials": "null"}, "search.trials"),
    ({"sampler": "grid"} | lr("{low: 0.1, high: 0.2}"), "search.sampler"),
    ({"rules": "{exclude: [{model.deph: 1}]}"}, "model.depth"),
]


@pytest.mark.parametrize(("fields", "told"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line_with_its_place(here, fields, told):
    with pytest.raises(ConfigError) as caught:
        load_search(write_search(**fields))
    assert told in str(caught.value)
    assert str(caught.value).startswith("made.yaml:")


@pytest.mark.parametrize(
    ("field", "value"), [("train.init", "other"), ("pretrain.task.name", "mae"), ("search", 3)]
)
def test_settings_that_no_search_has_are_refused(here, field, value):
    with pytest.raises(ConfigError, match=rf"{field.partition('.task')[0]}: "):
        load_search(write_search(), {field: value})


def test_what_makes_scores_incomparable_changes_the_key(here):
    key = load_search(write_search()).key()
    for same in ({"search.trials": 50}, {"search.sampler": "tpe"}, {"search.seed": 4}):
        assert load_search("made.yaml", same).key() == key
    for other in ({"train.epochs": 9}, {"search.rules.max_parameters": 9}, {"seed": 5}):
        assert load_search("made.yaml", other).key() != key
    write_search(space=SPACE.replace("48", "64"))
    assert load_search("made.yaml").key() != key


def test_the_size_is_that_which_a_training_records(here):
    assert measure_parameters(load_search(write_search()).base) == 137_802


@pytest.fixture
def search(here):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 32, 48], model.num_heads: [1, 2]}"
    return load_search(write_search(space=space, sampler="evolution"))


def make_study(search, scores: list[float], direction: Any = "maximize", points: Any = None):
    """Return a study of different points with these scores, finished in this order."""
    study = optuna.create_study(direction=direction)
    tried = zip(points or search.space.points(), scores, strict=False)
    for i, (point, score) in enumerate(tried):
        given: Any = {"params": point, "distributions": distributions(search.space)}
        trial = create_trial(**given, value=score, state=TrialState.COMPLETE)
        trial.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=i)
        study.add_trial(trial)
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
    points = [{"optim.lr": depth / 100, "model.depth": depth} for depth in (1, 2, 3, 4)]
    study = make_study(search, [1.0, 2.0, 3.0, 4.0], points=points)
    children = [propose(search, study, seed) for seed in range(20)]
    assert {distance(child, points[-1]) for child in children} == {1}
    assert all(0.001 <= child["optim.lr"] <= 0.1 for child in children)
