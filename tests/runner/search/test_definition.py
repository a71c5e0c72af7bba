"""Search files: what they may say, and evolution, the sampler that is not Optuna's."""

from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from tests.runner.search.made_up import SPACE, write_search
from vitcli.runner.errors import ConfigError
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.samplers import EvolutionSampler, distributions


def test_a_search_has_the_fields_of_its_file_and_of_its_base(here):
    search = load_search(write_search(seed="7", threads="2"))
    assert (search.name, search.num_trials) == ("made", 6)
    assert search.purpose.question == "which is best?"
    assert (search.base.data.name, search.base.data.val_split) == ("scenes", 1000)
    assert (search.fields.seed, search.threads, search.fields.size) == (7, 2, 36)
    spec = search.spec({"model.depth": 2, "model.embed_dim": 48, "model.num_heads": 2})
    assert (spec.model.depth, spec.model.embed_dim) == (2, 48)
    made = write_search(space="{optim.lr: [1.0e-3, 2.0e-3]}")
    other = load_search(made, {"model.family": "resnet18", "optim.name": "adamw"})
    assert (other.base.model.family, bool(other.note)) == ("resnet18", True)


def lr(text: str) -> dict[str, str]:
    return {"space": f"{{optim.lr: {text}}}"}


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"trails": "3"}, "'trials'"),
    ({"final": "{seeds: [1]}"}, "search.final"),
    ({"space": "{model.dept: [1, 2]}"}, "depth"),
    *(
        (lr(text), "optim.lr")
        for text in (
            "[1]",
            "[1, 1]",
            "3",
            "{low: 2.0, high: 1.0}",
            "{low: 0, high: 1, log: true}",
            "{low: 1, hihg: 2}",
            "{low: 0.1, high: 0.2, step: 1.0}",
        )
    ),
    ({"space": "{model.depth: {low: 1, high: 4, step: 0.5}}"}, "model.depth"),
    ({"space": "{data.augment.policy: [[1], [2]]}"}, "policy"),
    *(
        ({"space": f"{{{name}: [1, 2]}}"}, name)
        for name in ("seed", "data.val_split", "task.name", "train.init")
    ),
    ({"space": "{}"}, "search.space"),
    ({"sampler": "evolution", "population": "3"}, "sample_size"),
    ({"trials": "null"}, "trials"),
    ({"sampler": "grid"} | lr("{low: 0.1, high: 0.2}"), "sampler"),
    ({"rules": "{exclude: [{model.deph: 1}]}"}, "model.depth"),
]


@pytest.mark.parametrize(("fields", "told"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_names_its_place(here, fields, told):
    with pytest.raises(ConfigError, match=r"^made\.yaml:.*") as caught:
        load_search(write_search(**fields))
    assert told in str(caught.value)


@pytest.mark.parametrize("field", ["train.init", "pretrain.task.name", "search"])
def test_settings_that_no_search_has_are_refused(here, field):
    value = {"train.init": "other", "pretrain.task.name": "mae", "search": 3}[field]
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


def children(scores: list[float], sample: int = 4, direction: Any = "maximize") -> tuple[Any, Any]:
    """Return the points with these scores, finished in this order, and their children."""
    fields = load_search(write_search(space=SPACE.replace(", 5]", "]"))).fields
    study = optuna.create_study(direction=direction)
    for i, (point, score) in enumerate(zip(fields.points(), scores, strict=False)):
        given: Any = {"params": point, "distributions": distributions(fields)}
        member = create_trial(**given, value=score, state=TrialState.COMPLETE)
        member.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=i)
        study.add_trial(member)
    parents, found = [dict(trial.params) for trial in study.trials], []
    for seed in range(30):
        study.sampler = EvolutionSampler(distributions(fields), 4, sample, seed)
        trial = study.ask(distributions(fields))
        study.tell(trial, state=TrialState.FAIL)
        found.append(dict(trial.params))
    return parents, found


def changed(one: dict, other: dict) -> set[str]:
    return {field for field in one if one[field] != other[field]}


def test_a_child_differs_from_the_best_of_the_sample_in_one_field(here):
    parents, found = children([0.1, 0.2, 0.9, 0.3])
    assert {len(changed(child, parents[2])) for child in found} == {1}
    assert set().union(*(changed(child, parents[2]) for child in found)) == set(parents[2])
    parents, found = children([0.9, 0.2, 0.1, 0.4], direction="minimize")
    assert {len(changed(child, parents[2])) for child in found} == {1}


def test_the_oldest_die_even_the_best_of_them(here):
    parents, found = children([0.9, 0.1, 0.2, 0.3, 0.4])
    assert {len(changed(child, parents[4])) for child in found} == {1}
    assert {len(changed(child, parents[0])) for child in found} != {1}
    _, found = children([0.9, 0.1, 0.2, 0.3, 0.4], sample=1)
    assert {len(changed(child, parents[4])) for child in found} != {1}, "others have a chance"
