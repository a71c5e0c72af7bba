"""`vitcli search` as it is typed: what it prints, where, and how it ends."""

import importlib
import json
import re
import shutil
from pathlib import Path

import optuna
import pytest

from tests.cli.commands import typed
from tests.cli.conftest import SEARCH
from vitcli.runner.errors import ConfigError, PartlyError
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.store import read_store
from vitcli.runner.search import samplers
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.final import load_final
from vitcli.runner.search.result import SearchResult
from vitcli.runner.search.run import left_over
from vitcli.runner.study.plan import Options

ROOT = Path("runs/mine")


@pytest.fixture
def search(tiny, without_workers) -> None:
    Path("mine.yaml").write_text(SEARCH)


def test_a_search_from_nothing_to_its_tested_winner_and_again(search):
    out, talk = typed("search mine.yaml -j 1 --save saved")
    assert len(re.findall(r"^[0-9a-f]{8} depth=\d .* val .*%", talk, re.M)) == 3
    assert re.search(r"^winner +[\d,]+ +2 ", out, re.M)
    trials = [RunDir(path.parent) for path in ROOT.glob("trials/*/seed0/result.json")]
    assert len(trials) == 3
    for run in trials:
        seen = [*run.read("result.json"), *(key for line in run.metrics() for key in line)]
        assert not [key for key in seen if key.startswith("test_")], "a search sees no test score"
        assert run.read("meta.json")["num_test"] == 0
    tested = [RunDir(path.parent) for path in ROOT.glob("final/*/seed1?/result.json")]
    assert len(tested) == 4
    assert all("test_accuracy" in run.read("result.json") for run in tested)
    assert {run.read("meta.json")["num_val"] for run in tested} == {0}

    out, talk = typed("search mine.yaml --json --save saved")
    assert "to train" not in talk
    found = json.loads(out)
    assert found["final"]["rows"][1]["variant"] == "winner"
    shown = json.loads(typed("search mine.yaml --status --json --save saved")[0])
    assert (len(shown["trials"]), shown["trials"]) == (3, found["trials"])
    assert shown["unfinished"] == []
    refuse_another_winner()

    # Saved trials and the saved final stage are not trained again.
    assert len(read_store(Path("saved/mine-final"))) == 4
    shutil.rmtree(ROOT)
    estimate, _ = typed("search mine.yaml --dry-run --save saved")
    assert ("\ntrials     0 of 3 trials to train\n" in estimate, ROOT.exists()) == (True, False)
    out, talk = typed("search mine.yaml -j 1 --save saved --json")
    assert "4 of 4 trials taken from saved" in talk
    assert not [*ROOT.rglob("result.json")], "nothing is trained"
    other = json.loads(out)
    assert other["trials"] == found["trials"]
    assert other["final"]["rows"] == found["final"]["rows"]
    typed("search mine.yaml --status", 2)  # without --save


def test_the_folder_of_an_earlier_release_is_named_and_optuna_logs_nothing(search):
    trial = {"variant": "point", "config": {}, "config_hash": "a" * 16}
    ROOT.mkdir(parents=True)
    commit_json(ROOT / "plan.json", {"study": "mine", "trials": {"trials/a/seed0": trial}})
    _, talk = typed("search mine.yaml --status", 2)
    assert "search.journal" in talk
    optuna.logging.set_verbosity(optuna.logging.INFO)
    importlib.reload(samplers)
    assert optuna.logging.get_verbosity() == optuna.logging.CRITICAL


def refuse_another_winner() -> None:
    """A saved final stage refuses another winner and other seeds, and no file names those."""
    path, chosen = ROOT / "mine-final.yaml", load_search("mine.yaml", {})
    doc = SearchResult.model_validate_json((ROOT / "results.json").read_text())
    shutil.rmtree(ROOT / "final")
    assert load_final(chosen, doc, ROOT, Path("saved")) is not None
    path.unlink()
    point = dict(doc.winner.point)
    other = doc.winner.replace(point=point | {"model.depth": 3 - point["model.depth"]})
    seeds = load_search("mine.yaml", {"search.final.seeds": [12, 13]})
    for search, wanted in ((seeds, doc), (chosen, doc.replace(trials=[other]))):
        with pytest.raises(ConfigError, match="saved/mine-final has tested another winner"):
            load_final(search, wanted, ROOT, Path("saved"))
        assert not path.exists()


def test_a_final_stage_with_gaps_prints_its_table_and_the_next_command(search, monkeypatch):
    monkeypatch.setattr("vitcli.runner.study.run.run_study", lambda plan, *_, **__: plan.states)
    out, talk = typed("search mine.yaml -j 1 -s search.trials=1", 3)
    assert "error: 4 of 4 " in talk
    assert re.search(r"^winner .* 0 ", out, re.M), out


def test_the_final_stage_gets_what_the_trials_leave_of_the_budget():
    options = Options(budget=60, command="vitcli search mine.yaml --budget 1m")
    assert left_over(options, 45).budget == 15
    assert left_over(Options(), 45).budget is None
    with pytest.raises(PartlyError, match="vitcli search mine"):
        left_over(options, 61)


def test_a_dry_run_judges_the_space_and_trains_nothing(search):
    assert "num_heads" in typed("search mine.yaml --dry-run")[0], "why points are not valid"
    assert not ROOT.exists()
    found = json.loads(typed("search mine.yaml --dry-run --json")[0])
    assert (found["size"], found["valid_share"], found["num_open"]) == (8, 0.5, 3)


def test_without_optuna_one_line_says_what_to_install(search, monkeypatch):
    monkeypatch.setattr("vitcli.runner.search.definition.find_spec", lambda _: None)
    _, talk = typed("search mine.yaml", 2)
    assert (talk.count("\n"), talk.endswith("pip install '.[search]'\n")) == (1, True)


def test_a_storage_that_cannot_be_opened_is_exit_4(search):
    assert typed("search mine.yaml --storage nowhere://x", 4)[1].count("\n") == 1
    assert not [*ROOT.glob("trials/*")]


def test_a_space_without_a_valid_point_ends_with_a_sentence(search):
    Path("mine.yaml").write_text(SEARCH.replace("[1, 3]", "[3, 5]"))
    assert "no valid point was found" in typed("search mine.yaml -j 1", 3)[1]
