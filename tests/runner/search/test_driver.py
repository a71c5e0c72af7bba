"""A search asks, trains and tells: each configuration once, whatever kills it in between."""

from pathlib import Path

import pytest

from tests.runner.search.made_up import (
    ROOT,
    SPACE,
    Engine,
    asked,
    make_driver,
    score,
    search_all,
    sizes,
    write_run,
    write_search,
)
from vitcli.runner.engines.engine import Cluster
from vitcli.runner.errors import ConfigError, InUseError, PartlyError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.attributes import REPEATED
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.judge import INVALID, Judge
from vitcli.runner.search.records import read_saved, save_trial, trial_folder
from vitcli.runner.search.result import make_result
from vitcli.runner.search.run import check_cluster, hold_search, run_search
from vitcli.runner.study.plan import Options


def states(driver) -> list[str]:
    return [trial.state.name for trial in driver.store.trials()]


def test_a_search_trains_as_many_valid_configurations_as_it_was_told_to(made):
    driver = search_all()
    assert len(Engine.trained) == len(set(Engine.trained)) == 6
    assert states(driver).count("COMPLETE") == 6
    skipped = make_result(driver).skipped
    assert skipped[INVALID] == states(driver).count("FAIL") - skipped.get(REPEATED, 0) > 0
    trial = next(each for each in driver.store.trials() if each.state.name == "COMPLETE")
    assert trial.value == score(load_search(made).spec(dict(trial.params)))


def test_a_grid_trains_every_valid_configuration_once_and_ends_by_itself(here, made):
    write_search(sampler="grid", trials="null")
    driver = search_all()
    assert len(driver.results) == len(Engine.trained) == 24
    assert {each.rule for each in map(driver.judge, driver.search.space.points())} == {"", INVALID}
    assert len(make_result(driver).trials) == 24
    assert search_all().results.keys() == driver.results.keys()
    assert len(Engine.trained) == 24, "the second call trains nothing"


def test_a_random_search_of_a_small_space_ends_when_it_is_used_up(made):
    driver = search_all(trials=500)
    assert len(driver.results) == 24
    assert driver.is_exhausted
    assert states(driver).count("COMPLETE") == 24, "no configuration is told twice"


def test_rules_are_applied_before_a_training_and_do_not_use_up_trials(made):
    write_search(
        rules="{max_parameters: 6400, exclude: [{model.depth: [1, 2], model.num_heads: 2}]}",
        trials="500",
    )
    driver = search_all()
    points = [result.point for result in driver.results.values()]
    assert max(result.parameters for result in driver.results.values()) == 6400, "to the parameter"
    assert not [p for p in points if p["model.num_heads"] == 2 and p["model.depth"] < 3]
    rules = make_result(driver).skipped
    assert "more than 6,400 parameters" in rules
    assert rules["left out by search.rules.exclude"] >= 6


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_search_that_was_cut_short_asks_for_the_points_of_one_that_was_not(made, sampler):
    write_search(sampler=sampler, trials="14", population="4", sample_size="2")
    calm = search_all()
    expected = asked(calm)
    calm.store.study._storage.delete_study(calm.store.study._study_id)
    ROOT.rename("calm")
    for trials in (3, 7, 14):
        make_driver().store.ask()  # killed before it told anything
        driver = search_all(trials=trials)
    assert asked(driver) == expected
    assert len(expected) == 14, "a sampler that repeats itself does not end the search"


def test_after_kill_9_results_are_told_and_unfinished_trials_continue_first(made):
    driver = make_driver()
    driver.begin_plan()
    jobs = [driver.next_job() for _ in range(3)]
    done, begun, waiting = (job.folder for job in jobs)
    number, verdict = driver.verdicts[done]
    write_run(ROOT / done, verdict.spec, verdict.config_hash)
    _, other = driver.verdicts[begun]
    write_run(ROOT / begun, other.spec, other.config_hash, state="running", epochs=1)
    killed_while_asking = driver.store.ask()[0]
    assert states(driver).count("RUNNING") == 4

    again = search_all()
    assert Engine.trained[:2] == [begun, waiting], "they come before new points"
    assert done not in Engine.trained
    assert len(Engine.trained) == 5
    assert again.store.trials()[number].value == score(verdict.spec)
    assert again.store.trials()[killed_while_asking].state.name == "FAIL"
    assert "RUNNING" not in states(again)
    assert states(again).count("COMPLETE") == 6


def test_searches_in_two_folders_share_a_storage_and_no_trial(made):
    one, other = Path("runs/one"), Path("runs/other")
    first = make_driver(root=one, storage="shared")
    first.begin_plan()
    first.next_job()
    search_all(root=other, storage="shared")
    assert states(first) == ["RUNNING"], "the other search does not end a trial of this one"
    again = search_all(root=one, storage="shared")
    assert again.store.study._study_id == first.store.study._study_id, "it continues"
    assert len(search_all(root=other, storage="shared").results) == len(again.results) == 6
    assert len(Engine.trained) == 12, "and trains nothing twice"


def test_a_result_of_another_driver_is_told_and_not_trained_again(made):
    search = load_search(made)
    judge = Judge(search, sizes)
    for depth in (1, 2, 3, 4):
        for width in (16, 32, 48):
            point = {"model.depth": depth, "model.embed_dim": width, "model.num_heads": 1}
            spec = judge(point).spec
            digest = config_hash(spec)
            write_run(ROOT / trial_folder(digest, spec.seed), spec, digest)
    driver = search_all(trials=24)
    assert len(driver.results) == 24
    assert len(Engine.trained) == 12, "only those with two heads"


def test_a_run_of_another_configuration_in_the_folder_is_no_result(made):
    driver = make_driver()
    driver.begin_plan()
    job = driver.next_job()
    _, verdict = driver.verdicts[job.folder]
    write_run(ROOT / job.folder, verdict.spec, "0" * 64)
    assert make_driver().read() == [job.folder]


def test_saved_trials_replace_trainings_and_new_ones_are_saved_one_by_one(made, tmp_path):
    seen = []
    saved = tmp_path / "saved"
    Engine.on_job = staticmethod(lambda folder: seen.append(len([*saved.glob("*/*.json")])))
    first = search_all(save=tmp_path / "saved")
    assert seen == [0, 1, 2, 3, 4, 5], "each is saved before the next one begins"
    assert len(read_saved(tmp_path / "saved")) == 6
    ROOT.rename(tmp_path / "elsewhere")
    Engine.trained.clear()
    again = make_driver(save=tmp_path / "saved")
    assert again.read() == []
    assert again.results == first.results
    assert Engine.trained == []


def test_saved_trials_of_a_search_with_other_fields_get_the_fields_of_this_one(made, tmp_path):
    search_all(save=tmp_path / "saved", trials=24)
    space = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 48], train.eval_every: [1, 2]}"
    write_search("model: {num_heads: 1}\n", space=space, sampler="grid", trials="null")
    ROOT.rename(tmp_path / "elsewhere")
    Engine.trained.clear()
    driver = search_all(save=tmp_path / "saved")
    assert (len(driver.results), len(Engine.trained)) == (16, 8)
    fields = set(driver.search.space.parameters)
    assert all(set(trial.point) == fields for trial in driver.results.values())


def test_saved_trials_of_another_precision_are_trained_again_and_replaced(made, tmp_path):
    saved = tmp_path / "saved"
    search_all(save=saved)
    for trial in read_saved(saved).values():
        save_trial(saved, "made", trial.replace(precision="tf32"))
    ROOT.rename(tmp_path / "elsewhere")
    Engine.trained.clear()
    driver, said = make_driver(save=saved), []
    driver.on_event = lambda found: said.append(str(found.event))
    run_search(driver)
    assert len(Engine.trained) == 6
    assert sum("saved trials in tf32 are not used: this search is in " in s for s in said) == 1
    assert {trial.precision for trial in read_saved(saved).values()} == {None}


def test_a_diverged_trial_counts_and_a_failed_one_does_not(made):
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    driver = search_all(trials=24)
    kinds = [result.state for result in driver.results.values()]
    assert (kinds.count("diverged"), kinds.count("finished")) == (6, 18)
    assert states(driver).count("PRUNED") == 6
    assert make_result(driver).winner.point["model.depth"] == 3


def test_three_failed_trials_in_a_row_stop_the_search_with_their_reason(made):
    Engine.behave = staticmethod(lambda spec: "failed")
    with pytest.raises(PartlyError, match=r"3 trials failed one after the other \(it broke\); 0 t"):
        search_all()
    assert len(Engine.trained) == 3
    Engine.behave = staticmethod(lambda spec: "finished")
    driver = search_all()
    assert len(driver.results) == 6, "the failed ones did not use up the budget"


def test_pruned_trials_are_stopped_and_stay_so(made):
    write_search(pruning="median", trials="20", seed="1")
    driver = search_all()
    pruned = [folder for folder, each in driver.results.items() if each.state == "pruned"]
    assert pruned
    assert set(pruned) == set(Engine.cancelled)
    assert all(driver.results[folder].reason == "stopped after epoch 1" for folder in pruned)
    best = make_result(driver).winner
    assert best.point["model.embed_dim"] == 48
    assert make_driver().read() == [], "a pruned trial has its result"
    count = len(Engine.trained)
    search_all()
    assert len(Engine.trained) == count


def test_the_plan_names_a_trial_before_a_worker_is_told_to_train_it(made):
    # The engine of this test reads each configuration from the plan on disk, and refuses a plan
    # that does not keep the test images away.
    search_all()
    plan = RunDir(ROOT).read("plan.json")
    assert plan["without_test"] is True
    assert set(plan["trials"]) == set(Engine.trained)
    assert plan["data_hash"] == "d" * 64, "later workers refuse other images"


def test_two_drivers_cannot_ask_at_once(made):
    refused = pytest.raises(InUseError, match="another process is running this search")
    with hold_search(ROOT), refused, hold_search(ROOT):
        pass


def test_repeats_train_configurations_of_all_ranks_with_further_seeds(made):
    write_search(repeats="{seeds: [1, 2], configurations: 3}", trials="9")
    driver = search_all()
    doc = make_result(driver)
    assert len(doc.repeats) == 6
    scores = sorted(trial.score for trial in doc.trials)
    chosen = {each.config_hash for each in doc.repeats}
    ranks = sorted(scores.index(t.score) for t in doc.trials if t.config_hash in chosen)
    assert ranks == [0, 4, 8]
    assert doc.noise() == (pytest.approx(0.001), 6), "0, 0.001 and 0.002 more by seed"
    assert states(driver).count("COMPLETE") == 9, "the sampler sees no repeat"
    count = len(Engine.trained)
    search_all()
    assert len(Engine.trained) == count


def test_repeats_are_saved_too_also_those_of_an_earlier_call(made, tmp_path):
    write_search(repeats="{seeds: [1, 2], configurations: 3}", trials="9")
    search_all(save=tmp_path / "saved")
    saved = read_saved(tmp_path / "saved")
    assert sorted(seed for _, seed in saved) == [0] * 9 + [1] * 3 + [2] * 3
    search_all(save=tmp_path / "later")
    assert read_saved(tmp_path / "later") == saved
    assert len(Engine.trained) == 15


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
    killed = make_driver().store.ask()[1]
    failures = [2]

    def behave(spec) -> str:
        if spec.model.depth == 2 and spec.model.embed_dim == 32 and failures:
            failures.pop()
            return "failed"
        return "finished"

    Engine.behave = staticmethod(behave)
    driver = search_all()
    assert len(driver.results) == 24
    assert killed in [result.point for result in driver.results.values()]


def test_a_stricter_rule_begins_anew_and_keeps_the_trainings_that_satisfy_it(made):
    search_all(trials=24)
    driver = search_all(trials=24, **{"rules.max_parameters": 6400})
    assert 0 < len(driver.results) < 24
    assert max(result.parameters for result in driver.results.values()) == 6400
    assert len(Engine.trained) == 24


def test_a_changed_space_begins_anew_but_keeps_the_trainings(made):
    first = search_all(trials=24)
    write_search(space=SPACE.replace("[1, 2, 3, 4]", "[1, 2, 3]"), trials="500")
    second = search_all()
    assert len(second.results) == 18
    assert second.search.study_name() != first.search.study_name()
    assert len(Engine.trained) == 24


def test_a_search_with_two_objectives_tells_both(made):
    write_search(sampler="nsga2", cost="parameters", population="4", trials="12")
    driver = search_all()
    trial = next(each for each in driver.store.trials() if each.state.name == "COMPLETE")
    spec = driver.search.spec(dict(trial.params))
    assert trial.values == [score(spec), sizes(spec).parameters]
    run_search(make_driver())


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
