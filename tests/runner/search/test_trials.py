"""A search asks, trains and tells: each configuration once, whatever kills it in between."""

import os
from typing import Any

import pytest

from tests.runner.search.conftest import (
    ROOT,
    Engine,
    make_trials,
    points,
    score,
    search_all,
    write_run,
    write_search,
)
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit_json
from vitcli.runner.search.result import make_document, write_confirmation
from vitcli.runner.search.run import SearchDrive
from vitcli.runner.search.trials import EXCLUDED, INVALID, JOURNAL, REPEATED
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.page import html, publish
from vitcli.runner.study.table import build, read_document, render
from vitcli.runner.text import ignore_message


def begin(number: int) -> list[str]:
    """Ask for points without training them, as a search that is killed; return their folders."""
    trials = make_trials()
    return [trials.next_folder() or "" for _ in range(number)]


def behave(state: str, *depths: int) -> None:
    """Let the trainings of models of some depths end in a state; the others finish."""

    def end(spec: Any) -> str:
        return state if spec.model.depth in depths else "finished"

    Engine.behave = staticmethod(end)


@pytest.mark.parametrize("fields", [{"sampler": "grid", "trials": "null"}, {"trials": "500"}])
def test_a_small_space_is_used_up_after_a_kill_and_failures(made, fields):
    write_search(space="{model.depth: [1, 2, 3], model.num_heads: [1, 2, 5]}", **fields)
    (killed,) = begin(1)
    behave("failed", 2)
    trials = search_all()
    failed = trials.pending()
    assert len(failed) == 2
    assert killed in trials.asked()
    assert trials.skipped()[INVALID] >= 3
    behave("finished")
    Engine.trained.clear()
    trials = search_all()
    assert Engine.trained == failed, "the next call tries failed trials again, and nothing else"
    assert (len(trials.asked()), trials.pending()) == (6, [])


def test_rules_are_applied_before_a_training_and_do_not_use_up_trials(made):
    exclude = "[{model.depth: [1, 2], model.num_heads: 2}]"
    write_search(rules=f"{{max_parameters: 6400, exclude: {exclude}}}", trials="500")
    trials = search_all()
    assert max(read_plan(ROOT)["parameters"].values()) == 6400
    tried = [trial.params for trial in trials.asked().values()]
    assert not [p for p in tried if p["model.num_heads"] == 2 and p["model.depth"] < 3]
    assert trials.skipped().keys() >= {EXCLUDED, INVALID, "more than 6,400 parameters"}


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_killed_search_proposes_the_points_of_one_that_was_not(made, sampler):
    write_search(sampler=sampler, trials="16", population="4", sample_size="2")
    whole = points(search_all(ROOT / "whole"))
    Engine.trained.clear()
    for number in (1, 5, 9, 16):
        search_all(trials=number)
        begin(1)  # is killed before the training
        journal = ROOT / JOURNAL
        os.truncate(journal, journal.stat().st_size - 9)  # and in the middle of a line
    killed = search_all()
    assert points(killed) == whole
    assert len(Engine.trained) == len(set(Engine.trained)) == 16


def test_after_a_kill_results_count_and_unfinished_trials_come_first(made):
    done, begun, waiting = begin(3)
    entries = read_plan(ROOT)["trials"]
    write_run(ROOT / done, entries[done], state="finished")
    write_run(ROOT / begun, entries[begun], state="interrupted", epochs=1)
    make_trials().study.ask()  # a question without a point
    trials = search_all()
    assert Engine.trained[:2] == [begun, waiting]
    assert len(trials.asked()) == len(Engine.trained) + 1 == 6
    assert {*trials.skipped()} <= {INVALID, REPEATED}


def test_pruned_trials_stay_so_even_without_the_journal(made):
    write_search(pruning="median", trials="16", seed="1")
    doc = make_document(search_all())
    reasons = [row.trials[0].reason for row in doc.rows if row.trials[0].reason]
    assert {*reasons} == {"pruned after epoch 1"}
    assert len(reasons) == len(Engine.cancelled) == doc.searched.states["pruned"]
    assert doc.rows[0].changes["model.embed_dim"] == 48
    count = len(Engine.trained)
    assert make_document(search_all()) == doc
    (ROOT / JOURNAL).unlink()
    assert make_document(search_all()).rows == doc.rows
    assert len(Engine.trained) == count


def test_three_failed_trials_in_a_row_stop_a_search_but_not_for_good(made):
    behave("failed", 1, 2, 3, 4)
    failed = search_all().pending()
    assert len(Engine.trained) == len(failed) == 3
    behave("finished")
    trials = search_all()
    assert {*Engine.trained[-3:]} == {*failed}, "new points come before what failed"
    assert (len(trials.asked()), trials.pending()) == (6, [])


def test_two_drivers_share_one_search(made):
    write_search(trials="4")
    one, other = make_trials(), make_trials()
    folders = [trials.next_folder() for trials in (one, other, one, other)]
    assert len({*folders}) == 4
    drive = SearchDrive(other, None, ignore_message)
    drive._begun.update(folders[1::2])
    assert drive.more() == folders[::2], "at its end, it waits for the trials of the other"
    assert search_all().pending() == []


def test_folders_that_no_search_can_continue_are_refused(made):
    search_all()
    text = (ROOT / JOURNAL).read_text()
    (ROOT / JOURNAL).write_text(text.replace("{", "x", 1))
    with pytest.raises(InputError, match="delete it"):
        make_trials()
    commit_json(ROOT / "plan.json", {"study": "made", "storage_id": "1", "trials": {}})
    with pytest.raises(ConfigError, match=r"before vitcli 1\.1"):
        make_trials()


def test_the_document_is_that_of_a_study_with_the_best_first(made):
    write_search(trials="500", rules="{max_parameters: 15000}")
    behave("diverged", 4)
    trials = search_all()
    doc = make_document(trials)
    scores = [row.validation_score for row in doc.rows]
    specs = [trials.search.spec(trial.params) for trial in trials.asked().values()]
    assert scores[0] == max(map(score, specs))
    assert scores == sorted(scores, key=lambda value: -(value or 0))
    assert scores.count(None) == doc.searched.states["diverged"]
    for row in doc.front:
        better = [r for r in doc.rows if (r.validation_score or 0) >= row.validation_score]
        assert not [r for r in better if r is not row and r.parameters < row.parameters]
    assert [line[4] for line in build(doc).rows].count("*") == len(doc.front) > 1
    assert read_document(render(doc, "json")) == doc
    assert "test_" not in html(doc, {})
    publish(doc, ROOT)
    assert (ROOT / "figures/pareto.png").is_file()


def test_the_confirmation_tests_the_best_with_fresh_seeds_unless_it_is_the_default(made):
    trials = search_all()
    doc = make_document(trials)
    command = write_confirmation(trials, doc)
    study = load_study(command.split()[2])
    assert (study.name, len(study.seeds)) == ("made-confirm", 6)
    assert trials.search.base.seed not in study.seeds
    default, best = study.variants
    assert best.spec == trials.search.spec(doc.rows[0].changes).replace(data=best.spec.data)
    assert {default.spec.data.val_split, best.spec.data.val_split} == {0}
    base = {field: getattr(trials.search.base.model, field[6:]) for field in doc.rows[0].changes}
    same = doc.replace(rows=[doc.rows[0].replace(changes=base)])
    assert write_confirmation(trials, same) == ""
