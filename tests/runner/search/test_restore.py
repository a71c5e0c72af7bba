"""A search continues where its saved trials end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runner.search import made_up
from tests.runner.search.made_up import Engine, asked, make_driver, search_all, write_search
from vitcli.runner.search.records import read_saved, save_trial
from vitcli.runner.search.restore import restore
from vitcli.runner.search.run import run_search
from vitcli.runner.search.space import point_key


@pytest.fixture
def move(monkeypatch) -> Callable[[str], None]:
    """Return what moves to another machine: there is no storage of the search and no run folder."""

    def to(name: str) -> None:
        monkeypatch.setattr(made_up, "ROOT", Path(name))
        Engine.trained.clear()
        Engine.cancelled.clear()

    return to


@pytest.mark.parametrize("sampler", ["random", "evolution", "tpe"])
def test_a_search_continues_elsewhere_as_it_would_have_here(made, move, tmp_path, sampler):
    fields = {"sampler": sampler, "population": 5, "sample_size": 3}
    Engine.behave = staticmethod(lambda spec: "diverged" if spec.model.depth == 1 else "finished")
    whole = search_all(trials=20, **fields)
    move("second")
    search_all(save=tmp_path / "saved", trials=14, **fields)
    move("third")
    driver = make_driver(save=tmp_path / "saved", trials=20, **fields)
    assert restore(driver) == 14
    run_search(driver)
    assert asked(driver) == asked(whole)
    assert driver.results == whole.results
    assert len(Engine.trained) == 6
    assert restore(driver) == 0, "only an empty storage is filled"


def test_a_trial_without_a_saved_result_is_asked_for_again(made, move, tmp_path):
    write_search(sampler="grid", trials="null")
    search_all(save=tmp_path / "saved")
    move("second")
    lost = sorted((tmp_path / "saved" / "made").iterdir())[3]
    lost.unlink()
    driver = make_driver(save=tmp_path / "saved")
    assert restore(driver) == 23
    run_search(driver)
    assert (len(driver.results), len(Engine.trained)) == (24, 1)
    assert lost.is_file()


def test_trials_of_another_search_or_another_precision_are_not_restored(made, move, tmp_path):
    saved = tmp_path / "saved"
    search_all(save=saved)
    move("second")
    for field, value in (("precision", "tf32"), ("storage", "made-of-others"), ("number", None)):
        folder = tmp_path / field
        for trial in read_saved(saved).values():
            save_trial(folder, "made", trial.replace(**{field: value}))
        assert restore(make_driver(save=folder)) == 0


def test_a_pruned_trial_is_restored_with_its_curve(made, move, tmp_path):
    fields = {"sampler": "tpe", "pruning": "median"}
    whole = search_all(trials=16, **fields)
    assert [trial.state for trial in whole.results.values()].count("pruned")
    move("second")
    search_all(save=tmp_path / "saved", trials=12, **fields)
    move("third")
    driver = make_driver(save=tmp_path / "saved", trials=16, **fields)
    restore(driver)
    run_search(driver)
    assert {(r.config_hash, r.state) for r in driver.results.values()} == {
        (r.config_hash, r.state) for r in whole.results.values()
    }


def test_a_restored_search_of_a_small_space_ends_when_every_point_is_known(made, move, tmp_path):
    search_all(save=tmp_path / "saved", trials=14)
    move("second")
    driver = make_driver(save=tmp_path / "saved", trials=500)
    assert restore(driver) == 14
    run_search(driver)
    points = {point_key(each.params) for each in driver.store.trials() if each.params}
    assert len(points) == driver.search.space.size
    assert len(driver.results) == 24
