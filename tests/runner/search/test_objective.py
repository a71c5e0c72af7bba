"""A search asks, trains and tells: each configuration once, whatever kills it in between."""

import json
from dataclasses import replace

import pytest

from tests.runner.search.made_up import (
    ROOT,
    SPACE,
    Engine,
    asked,
    make_objective,
    score,
    search_all,
    sizes,
    write_run,
    write_search,
)
from vitcli.runner.engines import drive
from vitcli.runner.engines.engine import Cluster
from vitcli.runner.errors import ConfigError, InUseError, PartlyError, StoppedError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.judge import INVALID, Judge
from vitcli.runner.search.objective import REPEATED
from vitcli.runner.search.result import make_result
from vitcli.runner.search.run import check_cluster, run_search
from vitcli.runner.search.trial import trial_folder
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Stopping, TrialEvent


def states(objective) -> list[str]:
    return [trial.state.name for trial in objective.study.trials]


def begin(objective, number: int) -> list[str]:
    """Ask for points without training them, as a search that is killed; return their folders."""
    objective.recover()
    objective.begin_plan()
    return [objective.next_folder() for _ in range(number)]


def test_a_search_trains_as_many_valid_configurations_as_it_was_told_to(made):
    objective = search_all()
    assert len(Engine.trained) == len(set(Engine.trained)) == 6
    assert states(objective).count("COMPLETE") == 6
    skipped = make_result(objective).skipped
    assert skipped[INVALID] == states(objective).count("FAIL") - skipped.get(REPEATED, 0) > 0
    trial = next(each for each in objective.study.trials if each.state.name == "COMPLETE")
    assert trial.value == score(load_search(made).spec(dict(trial.params)))


def test_a_grid_trains_every_valid_configuration_once_and_ends_by_itself(here, made):
    write_search(sampler="grid", trials="null")
    objective = search_all()
    assert len(objective.results) == len(Engine.trained) == 24
    points = objective.search.space.points()
    assert {objective.judge(point).rule for point in points} == {"", INVALID}
    assert search_all().results == objective.results
    assert len(Engine.trained) == 24, "the second call trains nothing"


def test_a_random_search_of_a_small_space_ends_when_it_is_used_up(made):
    objective = search_all(trials=500)
    assert len(objective.results) == 24
    assert states(objective).count("COMPLETE") == 24, "no configuration is told twice"


def test_a_better_configuration_is_found_sooner_than_by_chance(made):
    """The best of 24 points, which a random order has among the first twelve half of the time."""
    write_search(sampler="evolution", population="4", sample_size="3", trials="12")
    found = [make_result(search_all(seed=seed, root=ROOT / str(seed))).winner for seed in range(8)]
    best = {"model.depth": 3, "model.embed_dim": 48, "model.num_heads": 1}
    assert sum(winner.point == best for winner in found) > 4


def test_rules_are_applied_before_a_training_and_do_not_use_up_trials(made):
    write_search(
        rules="{max_parameters: 6400, exclude: [{model.depth: [1, 2], model.num_heads: 2}]}",
        trials="500",
    )
    objective = search_all()
    results = objective.results.values()
    assert max(result.parameters for result in results) == 6400, "to the parameter"
    points = [result.point for result in results]
    assert not [p for p in points if p["model.num_heads"] == 2 and p["model.depth"] < 3]
    rules = make_result(objective).skipped
    assert "more than 6,400 parameters" in rules
    assert rules["left out by search.rules.exclude"] >= 6


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_search_that_was_cut_short_asks_for_the_points_of_one_that_was_not(made, sampler):
    write_search(sampler=sampler, trials="14", population="4", sample_size="2")
    expected = asked(search_all())
    ROOT.rename("calm")
    for trials in (3, 7, 14):
        begin(make_objective(trials=trials), 1)
        objective = search_all(trials=trials)
    assert asked(objective) == expected
    assert len(expected) == 14, "a sampler that repeats itself does not end the search"


def test_after_kill_9_results_are_told_and_unfinished_trials_continue_first(made):
    killed = make_objective()
    done, begun, waiting = begin(killed, 3)
    for folder, state in ((done, "finished"), (begun, "running")):
        spec = killed.open[folder][1].spec
        write_run(ROOT / folder, spec, config_hash(spec), state=state, epochs=1)
    killed.study.ask()  # a question without a point
    assert states(killed).count("RUNNING") == 4

    again = search_all()
    assert Engine.trained[:2] == [begun, waiting], "they come before new points"
    assert done not in Engine.trained
    assert len(Engine.trained) == 5
    assert "RUNNING" not in states(again)
    assert states(again).count("COMPLETE") == len(again.results) == 6
    assert set(make_result(again).skipped) <= {INVALID, REPEATED}


def test_searches_in_two_folders_share_a_database_and_no_trial(made):
    places = [{"root": ROOT / name, "storage": "sqlite:///all.db"} for name in ("one", "other")]
    begin(make_objective(**places[0]), 1)
    search_all(**places[1])
    first = make_objective(**places[0])
    assert states(first).count("RUNNING") == 1, "the other search does not end a trial of this one"
    assert len(search_all(**places[0]).results) == 6, "it continues"
    assert len(search_all(**places[1]).results) == 6
    assert len(Engine.trained) == 12, "and trains nothing twice"


def test_a_result_in_a_run_folder_is_told_and_not_trained_again(made):
    judge = Judge(load_search(made), sizes)
    for depth in (1, 2, 3, 4):
        for width in (16, 32, 48):
            point = {"model.depth": depth, "model.embed_dim": width, "model.num_heads": 1}
            spec = judge(point).spec
            write_run(ROOT / trial_folder(spec), spec, config_hash(spec))
    objective = search_all(trials=24)
    assert len(objective.results) == 24
    assert len(Engine.trained) == 12, "only those with two heads"


def test_a_run_of_another_configuration_in_the_folder_is_no_result(made):
    killed = make_objective()
    (folder,) = begin(killed, 1)
    write_run(ROOT / folder, killed.open[folder][1].spec, "0" * 64)
    search_all()
    assert folder in Engine.trained


def test_a_diverged_trial_counts_and_a_failed_one_does_not(made):
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    objective = search_all(trials=24)
    kinds = [result.state for result in objective.results.values()]
    assert (kinds.count("diverged"), kinds.count("finished")) == (6, 18)
    assert states(objective).count("PRUNED") == 6
    assert make_result(objective).winner.point["model.depth"] == 3


def test_three_failed_trials_in_a_row_stop_the_search_with_their_reason(made):
    Engine.behave = staticmethod(lambda spec: "failed")
    with pytest.raises(PartlyError, match=r"3 trials failed one after the other \(it broke\); 0 t"):
        search_all()
    assert len(Engine.trained) == 3
    Engine.behave = staticmethod(lambda spec: "finished")
    assert len(search_all().results) == 6, "the failed ones did not use up the budget"


@pytest.mark.parametrize("pruning", ["median", "halving"])
def test_pruned_trials_are_stopped_and_stay_so(made, pruning):
    write_search(pruning=pruning, trials="20", seed="1")
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


def test_the_plan_names_a_trial_before_a_worker_is_told_to_train_it(made):
    # The engine of this test reads each configuration from the plan on disk, and refuses a plan
    # that does not keep the test images away.
    search_all()
    plan = RunDir(ROOT).read("plan.json")
    assert plan["without_test"] is True
    assert set(plan["trials"]) == set(Engine.trained)
    assert plan["data_hash"] == "d" * 64, "later workers refuse other images"


def test_two_drivers_cannot_ask_at_once(made, tmp_path):
    place = make_objective(save=tmp_path / "saved").place
    elsewhere = make_objective(save=tmp_path / "saved", root=ROOT / "other").place
    for other in (place, elsewhere):
        with place.hold(), pytest.raises(InUseError, match="another process is running this sear"):
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
    count = len(Engine.trained)
    assert make_result(search_all()) == doc
    assert len(Engine.trained) == count


def test_a_repeat_that_fails_is_told_and_tried_again(made):
    write_search(repeats="{seeds: [1, 2], configurations: 3}", trials="9")
    Engine.behave = staticmethod(
        lambda spec: "failed" if spec.seed == 2 and len(Engine.trained) < 14 else "finished"
    )
    with pytest.raises(PartlyError, match="without a result: 2 repeats; try again: vitcli search"):
        search_all()
    Engine.behave = staticmethod(lambda spec: "finished")
    assert len(make_result(search_all()).repeats) == 6


def test_a_grid_tries_again_what_failed_or_was_killed_before_it_began(made):
    write_search(sampler="grid", trials="null")
    (killed,) = begin(make_objective(), 1)
    failures = [2]

    def behave(spec) -> str:
        if spec.model.depth == 2 and spec.model.embed_dim == 32 and failures:
            failures.pop()
            return "failed"
        return "finished"

    Engine.behave = staticmethod(behave)
    objective = search_all()
    assert len(objective.results) == 24
    assert killed in objective.results


@pytest.mark.parametrize(
    ("change", "count"),
    [({"rules": "{max_parameters: 6400}"}, 14), ({"space": SPACE.replace(", 4]", "]")}, 18)],
)
def test_another_space_or_rule_begins_anew_and_keeps_the_trainings(made, change, count):
    first = search_all(trials=24)
    write_search(**change)
    second = search_all(trials=24)
    assert len(second.results) == count
    assert second.search.study_name() != first.search.study_name()
    assert len(Engine.trained) == 24


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


@pytest.mark.parametrize(
    ("pruning", "jobs", "problem"),
    [("median", 2, "cannot stop a single trial"), ("none", None, "say with -j"), ("none", 2, "")],
)
def test_a_cluster_prunes_nothing_and_needs_a_number_of_trials_at_once(
    made, pruning, jobs, problem
):
    search = load_search(made, {"search.pruning": pruning})
    options = Options(jobs=jobs, cluster=Cluster(engine="ray"))
    if not problem:
        check_cluster(search, options)
        return
    with pytest.raises(ConfigError, match=problem):
        check_cluster(search, options)


def test_the_budget_ends_a_search_and_the_next_call_continues(made):
    objective = make_objective()
    objective.options = replace(objective.options, budget=1e-9)
    with pytest.raises(PartlyError, match="the budget is used up; 0 trials of 6 done"):
        run_search(objective, ignore_message)
    assert len(search_all().results) == 6


def test_a_signal_stops_trials_that_would_outlive_the_driver(made, monkeypatch):
    class Signal(drive.StopFlag):
        def __init__(self) -> None:
            super().__init__()
            self.number = 15

    monkeypatch.setattr(drive, "StopFlag", Signal)
    monkeypatch.setattr(Engine, "outlives_driver", True)
    events: list[TrialEvent] = []
    with pytest.raises(StoppedError, match="0 trials of 6 done"):
        run_search(make_objective(), events.append)
    assert [each.event for each in events] == [Stopping()]
