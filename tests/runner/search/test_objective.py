"""A search asks, trains and tells: each configuration once, whatever kills it in between."""

import json

import pytest

from tests.runner.search.made_up import (
    ROOT,
    Engine,
    make_objective,
    score,
    search_all,
    sizes,
    write_run,
    write_search,
)
from vitcli.runner.errors import InUseError, PartlyError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.estimate import estimate_search
from vitcli.runner.search.judge import EXCLUDED, INVALID
from vitcli.runner.search.objective import REPEATED
from vitcli.runner.search.result import make_result
from vitcli.runner.study.plan import Options
from vitcli.runner.train.events import EpochDone


def states(objective) -> list[str]:
    return [trial.state.name for trial in objective.study.trials]


def begin(objective, number: int) -> list[str]:
    """Ask for points without training them, as a search that is killed; return their folders."""
    objective.recover()
    objective.begin_plan()
    return [objective.next_folder() for _ in range(number)]


def test_a_search_trains_as_many_valid_configurations_as_it_was_told_to(made):
    """The engine reads each configuration from the plan on disk before it trains it."""
    objective = search_all()
    assert len(Engine.trained) == len(set(Engine.trained)) == 6
    assert states(objective).count("COMPLETE") == 6
    skipped = make_result(objective).skipped
    assert skipped[INVALID] == states(objective).count("FAIL") - skipped.get(REPEATED, 0) > 0
    trial = next(each for each in objective.study.trials if each.state.name == "COMPLETE")
    assert trial.value == score(load_search(made).spec(dict(trial.params)))
    plan = RunDir(ROOT).read("plan.json")
    assert plan["without_test"] is True
    assert set(plan["trials"]) == set(Engine.trained)
    assert plan["data_hash"] == "d" * 64, "later workers refuse other images"
    assert Engine.setup.request["device"] == "cpu"


@pytest.mark.parametrize("fields", [{"sampler": "grid", "trials": "null"}, {"trials": "500"}])
def test_a_small_space_is_used_up_whatever_fails_or_is_killed_before_it_began(made, fields):
    write_search(space="{model.depth: [1, 2, 3], model.num_heads: [1, 2, 5]}", **fields)
    (killed,) = begin(make_objective(), 1)
    failures = [2]

    def behave(spec) -> str:
        if spec.model.depth == 2 and failures:
            failures.pop()
            return "failed"
        return "finished"

    Engine.behave = staticmethod(behave)
    objective = search_all()
    points = objective.search.space.points()
    assert {objective.judge(point).rule for point in points} == {"", INVALID}
    assert len(objective.results) == states(objective).count("COMPLETE") == 6
    assert killed in objective.results
    count = len(Engine.trained)
    assert search_all().results == objective.results
    assert len(Engine.trained) == count, "the second call trains nothing"


def test_a_grid_goes_on_behind_any_number_of_invalid_points(made, monkeypatch):
    monkeypatch.setattr("vitcli.runner.search.objective.MAX_SKIPS", 1)
    fields = {"space": "{model.num_heads: [5, 7, 9, 1]}", "trials": "null"}
    write_search(sampler="grid", **fields)
    assert [each.point for each in search_all().results.values()] == [{"model.num_heads": 1}]


def test_rules_are_applied_before_a_training_and_do_not_use_up_trials(made):
    exclude = "[{model.depth: [1, 2], model.num_heads: 2}]"
    rules = f"{{max_parameters: 6400, max_forward_flops: 48000, exclude: {exclude}}}"
    write_search(rules=rules, trials="500")
    objective = search_all()
    results = objective.results.values()
    assert max(result.parameters for result in results) == 4800, "to the FLOP"
    points = [result.point for result in results]
    assert not [p for p in points if p["model.num_heads"] == 2 and p["model.depth"] < 3]
    skipped = make_result(objective).skipped
    assert skipped.keys() >= {"more than 6,400 parameters", "more than 48,000 forward FLOPs"}
    assert skipped[EXCLUDED] >= 6, "6,400 parameters are not more than that"


def test_after_kill_9_results_are_told_and_unfinished_trials_continue_first(made):
    killed = make_objective()
    done, begun, waiting, foreign = begin(killed, 4)
    for folder, state in ((done, "finished"), (begun, "running")):
        spec = killed.open[folder][1].spec
        write_run(ROOT / folder, spec, config_hash(spec), state=state, epochs=1)
    write_run(ROOT / foreign, killed.open[foreign][1].spec, "0" * 64)  # of another configuration
    killed.study.ask()  # a question without a point
    assert states(killed).count("RUNNING") == 5

    again = search_all()
    assert Engine.trained[:3] == [begun, waiting, foreign], "they come before new points"
    assert done not in Engine.trained
    assert len(Engine.trained) == 5
    assert "RUNNING" not in states(again)
    assert states(again).count("COMPLETE") == len(again.results) == 6
    assert set(make_result(again).skipped) <= {INVALID, REPEATED}


def test_searches_in_two_folders_share_a_database_and_no_trial(made):
    places = [{"root": ROOT / name, "storage": "sqlite:///all.db"} for name in ("one", "other")]
    begin(make_objective(**places[0]), 1)
    search_all(**places[1], trials=3)
    first = make_objective(**places[0])
    assert states(first).count("RUNNING") == 1, "the other search does not end a trial of this one"
    for place in places:
        assert len(search_all(**place, trials=3).results) == 3, "it continues"
    assert len(Engine.trained) == 6, "and trains nothing twice"


def test_a_diverged_trial_counts_and_a_failed_one_does_not(made):
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    objective = search_all(trials=12)
    kinds = [result.state for result in objective.results.values()]
    assert kinds.count("diverged") == states(objective).count("PRUNED") > 0
    assert states(objective).count("COMPLETE") == kinds.count("finished") > 0
    assert make_result(objective).winner.point["model.depth"] > 1


def test_three_failed_trials_in_a_row_stop_the_search_with_their_reason(made):
    Engine.behave = staticmethod(lambda spec: "failed")
    with pytest.raises(PartlyError, match="it broke"):
        search_all()
    assert len(Engine.trained) == 3
    Engine.behave = staticmethod(lambda spec: "finished")
    assert len(search_all().results) == 6, "the failed ones did not use up the budget"


def test_pruned_trials_are_stopped_and_stay_so(made):
    write_search(pruning="median", trials="16", seed="1")
    objective = search_all()
    pruned = [folder for folder, each in objective.results.items() if each.state == "pruned"]
    assert pruned
    assert set(pruned) == set(Engine.cancelled)
    reasons = {objective.results[folder].reason for folder in pruned}
    assert reasons == {"stopped after epoch 1"}
    assert make_result(objective).winner.point["model.embed_dim"] == 48
    count = len(Engine.trained)
    assert search_all().results == objective.results
    assert len(Engine.trained) == count


def test_a_trial_with_more_epochs_than_the_base_is_pruned_to_its_own_end(made):
    write_search(space="{train.epochs: [4, 5]}", pruning="median", trials="2")
    objective = make_objective()
    (folder,) = begin(objective, 1)
    last = objective.open[folder][1].spec.train.epochs
    for epoch in range(1, last + 1):
        objective.gives_up(folder, EpochDone(record={"epoch": epoch, "val_accuracy": 0.5}))
    assert [*objective.study.trials[0].intermediate_values] == [*range(1, last)]


def test_two_drivers_cannot_ask_at_once(made, tmp_path):
    place = make_objective(save=tmp_path / "saved").place
    elsewhere = make_objective(save=tmp_path / "saved", root=ROOT / "other").place
    for other in (place, elsewhere):
        with place.hold(), pytest.raises(InUseError, match="another process"):
            other.hold().__enter__()


def test_repeats_train_configurations_of_all_ranks_with_further_seeds(made):
    write_search(repeats="{seeds: [1, 2], configurations: 3}", trials="9")
    objective = search_all()
    doc = make_result(objective)
    assert len(doc.repeats) == 6
    scores = sorted(trial.score for trial in doc.trials)
    chosen = {each.config_hash for each in doc.repeats}
    ranks = sorted(scores.index(t.score) for t in doc.trials if t.config_hash in chosen)
    assert ranks == [0, 4, 8]
    assert doc.noise() == (pytest.approx(0.001), 6), "0, 0.001 and 0.002 more by seed"
    assert states(objective).count("COMPLETE") == 9, "the sampler sees no repeat"
    options = Options(jobs=1, device="cpu")
    assert estimate_search(objective.search, objective.place, options).num_repeats == 0
    count = len(Engine.trained)
    assert make_result(search_all()) == doc
    assert len(Engine.trained) == count


def test_a_repeat_that_fails_is_told_and_tried_again(made):
    write_search(repeats="{seeds: [1, 2], configurations: 3}", trials="9")
    Engine.behave = staticmethod(
        lambda spec: "failed" if spec.seed == 2 and len(Engine.trained) < 14 else "finished"
    )
    with pytest.raises(PartlyError, match="2 repeats"):
        search_all()
    Engine.behave = staticmethod(lambda spec: "finished")
    assert len(make_result(search_all()).repeats) == 6


def test_another_space_begins_anew_and_keeps_the_trainings(made):
    write_search(space="{model.depth: [1, 2, 3], model.num_heads: [1, 2]}")
    first = search_all()
    write_search(space="{model.depth: [1, 2], model.num_heads: [1, 2]}", trials="500")
    second = search_all()
    assert len(second.results) == 4
    assert second.search.study_name() != first.search.study_name()
    assert len(Engine.trained) == 6


def test_a_search_with_two_objectives_tells_both(made):
    write_search(sampler="nsga2", cost="parameters", population="4", trials="12")
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    objective = search_all()
    trial = next(each for each in objective.study.trials if each.state.name == "COMPLETE")
    spec = objective.search.spec(dict(trial.params))
    assert trial.values == [score(spec), sizes(spec).parameters]
    assert search_all().results == objective.results
    assert len(Engine.trained) == 12
    json.dumps(make_result(objective).model_dump(mode="json"))
