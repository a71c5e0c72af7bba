"""Search files: what they may say, and evolution, the sampler that is not Optuna's."""

from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from tests.runner.search.conftest import SPACE, write_search
from vitcli.runner.errors import ConfigError
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.samplers import EvolutionSampler, distributions

RATES = [
    *("[1]", "[1, true]", "3", "{low: 2.0, high: 1.0}", "{low: 0, high: 1, log: true}"),
    *("{low: 1, hihg: 2}", "{low: 0.1, high: 0.2, step: 1.0}", "{low: 1, high: 4, step: 0.5}"),
]
MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"trails": "3"}, "'trials'"),
    ({"space": "{model.dept: [1, 2]}"}, "depth"),
    *(({"space": f"{{optim.lr: {text}}}"}, "optim.lr") for text in RATES),
    ({"space": "{data.augment.policy: [[1], [2]]}"}, "policy"),
    *(({"space": f"{{{f}: [1, 2]}}"}, f) for f in ("seed", "data.val_split", "task.name")),
    ({"space": "{}"}, "search.space"),
    ({"trials": "null"}, "trials"),
    ({"sampler": "grid", "space": "{optim.lr: {low: 0.1, high: 0.2}}"}, "sampler"),
    ({"rules": "{exclude: [{model.deph: 1}]}"}, "model.deph"),
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


def distances(scores: list[float], parent: int, sample: int = 4, way: Any = "maximize") -> set[int]:
    """Return in how many fields children differ from a parent; the scores came in this order."""
    fields = load_search(write_search(space=SPACE.replace(", 5]", "]"))).fields
    space, study = distributions(fields), optuna.create_study(direction=way)
    for i, (point, score) in enumerate(zip(fields.points(), scores, strict=False)):
        given: Any = {"params": point, "distributions": space}
        member = create_trial(**given, value=score, state=TrialState.COMPLETE)
        member.datetime_complete = datetime(2026, 1, 1) + timedelta(seconds=i)
        study.add_trial(member)
    best, counts = study.trials[parent].params, set()
    for seed in range(30):
        study.sampler = EvolutionSampler(space, 4, sample, seed)
        trial = study.ask(space)
        study.tell(trial, state=TrialState.FAIL)
        counts.add(sum(trial.params[field] != best[field] for field in best))
    return counts


def test_a_child_differs_from_the_best_of_the_sample_in_one_field(here):
    assert distances([0.1, 0.2, 0.9, 0.3], 2) == {1}
    assert distances([0.9, 0.2, 0.1, 0.4], 2, way="minimize") == {1}


def test_the_oldest_die_even_the_best_of_them(here):
    scores = [0.9, 0.1, 0.2, 0.3, 0.4]
    assert distances(scores, 4) == {1}
    assert distances(scores, 0) != {1}
    assert distances(scores, 4, sample=1) != {1}, "others have a chance"
