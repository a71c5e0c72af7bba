"""A search continues on a machine that has only its saved trials and its history."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.search import made_up
from tests.runner.search.made_up import Engine, asked, make_driver, search_all, write_run
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import sha256
from vitcli.runner.search.attributes import FOLDER, KILLED
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.driver import Driver
from vitcli.runner.search.history import (
    history_path,
    read_history,
    require_saved,
    restore,
    write_history,
)
from vitcli.runner.search.judge import Verdict
from vitcli.runner.search.records import read_saved, save_trial
from vitcli.runner.search.run import run_search
from vitcli.runner.search.samplers import youngest
from vitcli.runner.search.space import point_key
from vitcli.runner.search.store import Store
from vitcli.runner.train.events import Ended, TrialEvent

COMMITTED = Path(__file__).parents[3] / "experiments/search/trials"

SAMPLERS: dict[str, dict[str, Any]] = {
    "random": {},
    "evolution": {"population": 5, "sample_size": 3},
    "tpe": {},
    "nsga2": {"population": 4, "cost": "parameters"},
}


@pytest.fixture
def move(monkeypatch) -> Callable[[str], None]:
    """Return what moves to another machine: there is no storage of the search and no run folder."""

    def to(name: str) -> None:
        monkeypatch.setattr(made_up, "ROOT", Path(name))
        Engine.trained.clear()
        Engine.cancelled.clear()

    return to


def questions(driver: Driver) -> list[Any]:
    """Return what the storage knows about each trial, except its times."""
    return [
        (t.state, t.params, t.values, t.user_attrs, t.system_attrs, t.intermediate_values)
        for t in driver.store.trials()
    ]


@pytest.mark.parametrize("pruning", ["none", "median", "halving"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_continues_elsewhere_as_it_would_have_here(made, move, tmp_path, sampler, pruning):
    if pruning != "none" and sampler == "nsga2":
        pytest.skip("a search with two objectives cannot prune")
    fields = {"sampler": sampler, "pruning": pruning} | SAMPLERS[sampler]
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    whole = search_all(trials=20, **fields)
    states = [result.state for result in whole.results.values()]
    assert ("pruned" in states) == (pruning != "none")
    move("second")
    search_all(save=tmp_path / "saved", trials=14, **fields)
    move("third")
    driver = make_driver(save=tmp_path / "saved", trials=20, **fields)
    assert restore(driver) == 14
    run_search(driver)
    assert asked(driver) == asked(whole)
    assert questions(driver) == questions(whole)
    assert driver.results == whole.results
    assert len(Engine.trained) == 6
    assert restore(driver) == 0, "the storage has every trial of the history"


def test_a_killed_question_and_an_interrupted_restore_change_nothing(made, move, tmp_path):
    whole = search_all(trials=20)
    move("second")
    search_all(save=tmp_path / "saved", trials=6)
    killed = make_driver(save=tmp_path / "saved", trials=14)
    number, _ = killed.store.ask()
    killed.store.skip(number, KILLED)
    run_search(killed)
    move("third")
    driver = make_driver(save=tmp_path / "saved", trials=20)
    lines = history_path(tmp_path / "saved", driver.search).read_text().splitlines()[1:4]
    driver.store.add([json.loads(line) for line in lines])
    assert restore(driver) == 14 - sum('"COMPLETE"' in line for line in lines)
    run_search(driver)
    assert asked(driver) == asked(whole)


def test_a_trial_without_a_saved_result_is_trained_again_and_not_pruned(made, move, tmp_path):
    fields = {"sampler": "tpe", "pruning": "median", "trials": 16}
    whole = search_all(save=tmp_path / "saved", **fields)
    states = {result.config_hash: result.state for result in whole.results.values()}
    pruned = next(digest for digest, state in states.items() if state == "pruned")
    move("second")
    (lost,) = (tmp_path / "saved" / "made").glob(f"{pruned[:12]}-*.json")
    lost.unlink()
    driver = make_driver(save=tmp_path / "saved", **fields)
    assert restore(driver) == 15
    run_search(driver)
    assert len(Engine.trained) == 1
    assert lost.is_file()
    (again,) = (each for each in driver.results.values() if each.config_hash == pruned)
    assert again.state == "finished"
    assert len(driver.results) == 16


@pytest.mark.parametrize("folder", ["../../x", "/tmp/x", "trials/../x", 5, "trials/a/seed0"])
def test_a_trial_outside_the_search_is_refused(made, move, tmp_path, folder):
    """A driver would train a running trial in the folder that a stranger's file names."""
    driver = search_all(save=tmp_path / "saved", trials=2)
    path = history_path(tmp_path / "saved", driver.search)
    records = read_history(path)
    records[1] |= {"state": "RUNNING", "values": None, "ended": None}
    records[1]["user_attrs"] = {FOLDER: folder}
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    path.write_text(f'{{"format": 1, "sha256": "{sha256(lines.encode())}"}}\n{lines}')
    with pytest.raises(InputError, match="damaged; restore it, or delete it"):
        read_history(path)
    move("second")
    storage = make_driver(trials=2)
    storage.store.add(records)
    with pytest.raises(InputError, match="not in its folder"):
        storage.recover()


def test_a_saved_score_that_is_no_share_is_refused(made, move, tmp_path):
    search_all(save=tmp_path / "saved", trials=2)
    for trial in read_saved(tmp_path / "saved").values():
        save_trial(tmp_path / "saved", "made", trial.replace(score=7.5, curve=((2, 7.5),)))
    move("second")
    driver = make_driver(save=tmp_path / "saved", trials=2)
    with pytest.raises(InputError, match="impossible accuracy"):
        restore(driver)


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_a_lost_trial_that_ends_badly_does_not_end_the_search(made, move, tmp_path, state):
    search_all(save=tmp_path / "saved", trials=6)
    move("second")
    next(iter((tmp_path / "saved" / "made").glob("*.json"))).unlink()
    Engine.behave = staticmethod(lambda spec: state)
    driver = make_driver(save=tmp_path / "saved", trials=6)
    assert restore(driver) == 5
    run_search(driver)
    assert len(Engine.trained) == 1


def test_a_point_that_is_no_longer_valid_is_left_out(made, move, tmp_path):
    search_all(save=tmp_path / "saved", trials=6)
    move("second")
    driver = make_driver(save=tmp_path / "saved", trials=6)
    restore(driver)
    gone = driver.store.evaluated()[2].params
    judge = driver.judge
    driver.judge = lambda point: (
        Verdict(point=point, rule="invalid") if point == gone else judge(point)
    )
    run_search(driver)
    assert len(driver.results) == 5


def test_trials_that_ended_out_of_order_keep_their_order(made, move, tmp_path):
    """Evolution knows the youngest trials by the time at which they ended."""
    fields = {"sampler": "evolution", "population": 3, "sample_size": 2, "trials": 12}
    begun = make_driver(save=tmp_path / "saved", **fields)
    numbers = [begun.store.ask()[0] for _ in range(4)]
    for number in reversed(numbers):
        begun.store.tell(number, [0.1 * number])
    write_history(begun)
    before = [trial.number for trial in youngest(begun.store.trials(), 3)]
    assert before == [2, 1, 0]
    move("second")
    lines = history_path(tmp_path / "saved", begun.search).read_text().splitlines()[1:]
    driver = make_driver(save=tmp_path / "saved", **fields)
    driver.store.add([json.loads(line) for line in lines])
    assert [trial.number for trial in youngest(driver.store.trials(), 3)] == before


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("pruning", ["median", "halving"])
@pytest.mark.parametrize("sampler", ["evolution", "tpe"])
def test_a_search_returns_to_the_machine_that_was_killed(
    made, move, tmp_path, sampler, pruning, is_asked
):
    fields = {"sampler": sampler, "pruning": pruning, "population": 4, "sample_size": 2}
    whole = search_all(trials=20, **fields)
    move("second")
    search_all(save=tmp_path / "saved", trials=8, **fields)
    killed = make_driver(save=tmp_path / "saved", trials=14, **fields)
    begin(killed, 1 if is_asked else 0)
    if not is_asked:
        killed.store.study.ask()  # the trial has no point yet
    second = made_up.ROOT
    move("third")
    away = make_driver(save=tmp_path / "saved", trials=14, **fields)
    assert restore(away) == 8
    run_search(away)
    move(str(second))
    back = make_driver(save=tmp_path / "saved", trials=20, **fields)
    assert restore(back) == 6
    run_search(back)
    assert asked(back) == asked(whole)
    assert questions(back) == questions(whole)


def begin(driver: Driver, number: int) -> list[str]:
    """Ask for points without training them; return their run folders."""
    driver.recover()
    driver.begin_plan()
    jobs = [driver.next_job() for _ in range(number)]
    write_history(driver)
    return [job.folder for job in jobs if job]


def test_trials_that_ended_on_another_machine_keep_their_order(made, move, tmp_path):
    fields = {"sampler": "evolution", "population": 3, "sample_size": 2, "trials": 12}
    search_all(save=tmp_path / "saved", **fields | {"trials": 6})
    folders = begin(make_driver(save=tmp_path / "saved", **fields), 3)
    first = made_up.ROOT
    move("second")
    away = make_driver(save=tmp_path / "saved", **fields)
    restore(away)
    away.recover()
    for folder in reversed(folders):
        finish(away, folder)
    write_history(away)
    before = [trial.number for trial in youngest(away.store.trials(), 3)]
    assert before != sorted(before)
    move(str(first))
    back = make_driver(save=tmp_path / "saved", **fields)
    assert restore(back) == 3
    assert [trial.number for trial in youngest(back.store.trials(), 3)] == before


def finish(driver: Driver, folder: str) -> None:
    """Train a trial to its end."""
    spec = driver.verdicts[folder][1].spec
    assert spec is not None
    write_run(driver.root / folder, spec, config_hash(spec))
    driver.handle(TrialEvent(folder, Ended(state="finished")))


def test_a_history_in_another_precision_is_refused_and_kept(made, move, tmp_path):
    saved = tmp_path / "saved"
    kept = history_path(saved, search_all(save=saved, trials=6).search)
    content = kept.read_bytes()
    for trial in read_saved(saved).values():
        save_trial(saved, "made", trial.replace(precision="tf32"))
    move("second")
    with pytest.raises(ConfigError, match=f"{kept}: this history has trials in tf32; name another"):
        restore(make_driver(save=saved, trials=6))
    assert kept.read_bytes() == content
    kept.unlink()
    said = []
    driver = make_driver(save=saved, trials=6)
    driver.on_event = lambda found: said.append(getattr(found.event, "text", ""))
    run_search(driver)
    assert said[0].startswith("saved trials in tf32 are not used: this search is in ")
    assert len(Engine.trained) == 6


def test_other_trials_than_those_of_the_history_are_refused(made, move, tmp_path):
    saved = tmp_path / "saved"
    kept = history_path(saved, search_all(save=saved, trials=6).search)
    content = kept.read_bytes()
    move("second")
    search_all(trials=2, seed=7)
    with pytest.raises(ConfigError, match=f"{kept}: this history has other trials than second"):
        restore(make_driver(save=saved, trials=6))
    assert kept.read_bytes() == content


@pytest.mark.parametrize("change", [{"seed": 5}, {"sampler": "tpe"}, {"rules": {"exclude": []}}])
def test_another_sampler_asks_for_its_own_points_and_takes_saved_results(
    made, move, tmp_path, change
):
    saved = tmp_path / "saved"
    first = search_all(save=saved, trials=14)
    move("second")
    alone = search_all(trials=10, **change)
    move("third")
    driver = make_driver(save=saved, trials=10, **change)
    is_same = change == {"rules": {"exclude": []}}
    assert restore(driver) == (14 if is_same else 0)
    run_search(driver)
    assert asked(driver) == asked(first if is_same else alone)
    assert len(driver.results) == (14 if is_same else 10)
    assert set(Engine.trained) == set(driver.results) - set(first.results)


def test_a_history_whose_results_are_lost_is_trained_again(made, move, tmp_path):
    saved = tmp_path / "saved"
    whole = search_all(save=saved, trials=6)
    for path in (saved / "made").glob("*.json"):
        path.unlink()
    move("second")
    driver = make_driver(save=saved, trials=6)
    assert restore(driver) == 0
    run_search(driver)
    assert driver.results == whole.results
    assert len(Engine.trained) == 6


def test_two_searches_share_a_folder_and_both_are_restored(made, move, tmp_path):
    saved = tmp_path / "saved"
    first = search_all(save=saved, trials=4)
    other = {"rules": {"max_parameters": 15_000}, "trials": 8}
    second = search_all(save=saved, **other)
    move("second")
    for whole, fields in ((first, {"trials": 4}), (second, other)):
        driver = make_driver(save=saved, **fields)
        assert restore(driver) == len(whole.results)
        run_search(driver)
        assert driver.results == whole.results
    assert not Engine.trained


def test_without_the_folder_of_its_results_a_search_is_not_trained_again(made, move, tmp_path):
    saved = tmp_path / "saved"
    search_all(save=saved, trials=4)
    require_saved(make_driver(trials=4))
    move("second")
    driver = make_driver(save=saved, trials=4)
    history_path(saved, driver.search).unlink()
    run_search(driver)
    assert not Engine.trained
    require_saved(make_driver(save=saved, trials=4))
    for other in (None, tmp_path / "typo"):
        with pytest.raises(ConfigError, match=f"results of this search are in {saved}; add --save"):
            require_saved(make_driver(save=other, trials=4))
    shutil.copytree(saved, tmp_path / "moved")
    require_saved(make_driver(save=tmp_path / "moved", trials=4))


def test_a_trial_that_began_here_and_ended_elsewhere_is_not_trained_again(made, move, tmp_path):
    saved = tmp_path / "my saved"
    search_all(save=saved, trials=4)
    killed = make_driver(save=saved, trials=5)
    (folder,) = begin(killed, 1)
    spec = killed.verdicts[folder][1].spec
    write_run(killed.root / folder, spec, config_hash(spec), state="interrupted", epochs=1)
    first = made_up.ROOT
    move("second")
    away = make_driver(save=saved, trials=5)
    restore(away)
    run_search(away)
    move(str(first))
    back = make_driver(save=saved, trials=5)
    assert restore(back) == 1
    run_search(back)
    assert not Engine.trained
    with pytest.raises(ConfigError, match=f"add --save {shlex.quote(str(saved))}"):
        require_saved(make_driver(trials=5))


def test_a_damaged_history_is_refused(made, move, tmp_path):
    saved = tmp_path / "saved"
    driver = search_all(save=saved, trials=4)
    path = history_path(saved, driver.search)
    path.write_text(path.read_text().replace("COMPLETE", "PRUNED", 1))
    move("second")
    with pytest.raises(InputError, match=r"\.jsonl: damaged; restore it, or delete it"):
        restore(make_driver(save=saved))


def test_a_restored_search_of_a_small_space_ends_when_every_point_is_known(made, move, tmp_path):
    search_all(save=tmp_path / "saved", trials=14)
    move("second")
    driver = make_driver(save=tmp_path / "saved", trials=500)
    assert restore(driver) == 14
    run_search(driver)
    points = {point_key(each.params) for each in driver.store.trials() if each.params}
    assert len(points) == driver.search.space.size
    assert len(driver.results) == 24


def test_the_committed_history_has_a_result_for_each_of_its_trials(tmp_path):
    search = load_search("search-tiny")
    store = Store(search, tmp_path)
    store.add(read_history(history_path(COMMITTED, search)))
    folders = {trial.user_attrs[FOLDER].split("/")[1] for trial in store.evaluated()}
    found = {digest[:12] for digest, _ in read_saved(COMMITTED / search.name)}
    assert len(store.evaluated()) == search.num_trials
    assert folders == found
