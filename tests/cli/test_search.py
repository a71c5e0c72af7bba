"""`vitcli search` as it is typed: what it prints, where, and how it ends."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import SEARCH
from tests.patience import HANG
from vitcli.cli.main import app
from vitcli.runner.errors import ConfigError, PartlyError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.store import read_store
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.final import load_final
from vitcli.runner.search.result import SearchResult
from vitcli.runner.search.run import left_over
from vitcli.runner.study.plan import Options

ROOT = Path("runs/mine")


def invoke(command: str):
    words = ["search", *shlex.split(command)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vitcli", *words])
        return CliRunner().invoke(app, words)


@pytest.fixture
def search(tiny) -> None:
    Path("mine.yaml").write_text(SEARCH)


def test_a_search_from_nothing_to_its_tested_winner_and_again(search):
    first = invoke("mine.yaml -j 1 --save saved")
    assert first.exit_code == 0, first.output
    assert "search mine: 3 trials, random\n3 to train, 1 at once" in first.stderr
    lines = re.findall(
        r"^[0-9a-f]{8} depth=\d embed_dim=\d+ num_heads=1  val .*%", first.stderr, re.M
    )
    assert len(lines) == 3, first.stderr
    assert "not a valid configuration (" in first.stdout
    assert "The search reads no test image." in first.stdout
    assert re.search(r"^winner +[\d,]+ +2 ", first.stdout, re.M)
    assert first.stderr.endswith(
        "\nreport  runs/mine/report.html"
        "\nnext    vitcli search mine.yaml -j 1 --save saved --status\n"
    )
    trials = [RunDir(path.parent) for path in ROOT.glob("trials/*/seed0/result.json")]
    assert len(trials) == 3
    assert Path("saved/mine/search.journal").is_file()
    for run in trials:
        seen = [*run.read("result.json"), *(key for line in run.metrics() for key in line)]
        assert not [key for key in seen if key.startswith("test_")], "a search sees no test score"
        assert run.read("meta.json")["num_test"] == 0
    tested = [RunDir(path.parent) for path in ROOT.glob("final/*/seed1?/result.json")]
    assert len(tested) == 4
    assert all("test_accuracy" in run.read("result.json") for run in tested)
    assert {run.read("meta.json")["num_val"] for run in tested} == {0}

    again = invoke("mine.yaml --json --save saved")
    assert again.exit_code == 0
    assert "to train" not in again.stderr
    found = json.loads(again.stdout)
    assert found["final"]["rows"][1]["variant"] == "winner"
    shown = json.loads(invoke("mine.yaml --status --json --save saved").stdout)
    assert shown["trials"] == found["trials"]
    assert len(shown["trials"]) == 3


def test_saved_trials_and_the_saved_final_stage_are_not_trained_again(search):
    first = json.loads(invoke("mine.yaml -j 1 --save saved --json").stdout)
    assert len(read_store(Path("saved/mine-final"))) == 4
    shutil.rmtree(ROOT)
    assert (
        "\ntrials     0 of 3 trials to train\n" in invoke("mine.yaml --dry-run --save saved").stdout
    )
    assert not ROOT.exists()
    again = invoke("mine.yaml -j 1 --save saved --json")
    assert again.exit_code == 0, again.output
    assert "3 trials taken from saved/mine" in again.stderr
    assert "4 of 4 trials taken from saved" in again.stderr
    assert not [*ROOT.rglob("result.json")], "nothing is trained"
    found = json.loads(again.stdout)
    assert found["trials"] == first["trials"]
    assert found["final"]["rows"] == first["final"]["rows"]
    status = invoke("mine.yaml --save saved --status --json")
    assert json.loads(status.stdout)["trials"] == first["trials"]
    refused = invoke("mine.yaml --status")
    assert refused.exit_code == 2
    assert f"add --save {Path('saved').resolve()}" in refused.stderr


def test_a_saved_final_stage_refuses_another_winner(search):
    assert invoke("mine.yaml -j 1 --save saved -s search.trials=1").exit_code == 0
    path = ROOT / "mine-final.yaml"
    text = path.read_text()
    chosen = load_search("mine.yaml", {"search.trials": 1})
    doc = SearchResult.model_validate_json((ROOT / "results.json").read_text())
    shutil.rmtree(ROOT / "final")
    assert load_final(chosen, doc, ROOT, Path("saved")) is not None
    point = dict(doc.winner.point)
    other = doc.winner.replace(point=point | {"model.depth": 3 - point["model.depth"]})
    with pytest.raises(ConfigError, match="saved/mine-final has tested another winner"):
        load_final(chosen, doc.replace(trials=[other]), ROOT, Path("saved"))
    assert path.read_text() == text, "no file names the refused winner"
    path.unlink()
    with pytest.raises(ConfigError, match="saved/mine-final has tested another winner"):
        load_final(chosen, doc.replace(trials=[other]), ROOT, Path("saved"))
    assert not path.exists()


def test_a_final_stage_with_gaps_prints_its_table_and_the_next_command(search, monkeypatch):
    monkeypatch.setattr("vitcli.runner.study.run.run_study", lambda plan, *_: plan.states)
    found = invoke("mine.yaml -j 1 -s search.trials=1")
    assert found.exit_code == 3
    assert re.search(r"^winner .* 0 ", found.stdout, re.M), found.stdout
    assert "4 of 4 trials have no result; try them again: vitcli" in found.stderr


def test_the_final_stage_gets_what_the_trials_leave_of_the_budget():
    options = Options(budget=60, command="vitcli search mine.yaml --budget 1m")
    assert left_over(options, 45).budget == 15
    assert left_over(Options(), 45).budget is None
    with pytest.raises(PartlyError, match="vitcli search mine"):
        left_over(options, 61)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_search_that_is_killed_continues(search, number):
    """tests/runner/search/test_objective.py has the same with files written by hand, in no time."""
    Path("mine.yaml").write_text(SEARCH.replace("train: {epochs: 1}", "train: {epochs: 40}"))
    words = [sys.executable, "-m", "vitcli", "search", "mine.yaml", "-j", "1", "--no-final"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + HANG
        while not (begun := [*ROOT.glob("trials/*/seed0/checkpoints/*/manifest.json")]):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(HANG) == (-9 if number == signal.SIGKILL else 143)
    again = invoke("mine.yaml -j 1 --no-final")
    assert again.exit_code == 0, again.output
    results = [*ROOT.glob("trials/*/seed0/result.json")]
    assert len(results) == 3, "the trial that was begun is one of the three"
    run = RunDir(begun[0].parents[2])
    assert run.status()["state"] == "finished"
    assert len(run.read("meta.json")["sessions"]) == 1, "it continued from its checkpoint"


def test_a_dry_run_judges_the_space_and_trains_nothing(search):
    shown = invoke("mine.yaml --dry-run")
    assert shown.exit_code == 0, shown.output
    assert "space      8 points; 50 % valid (all points judged)" in shown.stdout
    assert "not a valid configuration: 4, such as: " in shown.stdout
    assert "must be divisible" in shown.stdout or "num_heads" in shown.stdout
    assert "trials     3 of 3 trials to train" in shown.stdout
    assert "no test image is read" in shown.stdout
    assert not ROOT.exists()
    found = json.loads(invoke("mine.yaml --dry-run --json").stdout)
    assert (found["size"], found["valid_share"], found["num_open"]) == (8, 0.5, 3)


def test_without_optuna_one_line_says_what_to_install(search, monkeypatch):
    monkeypatch.setattr("vitcli.runner.search.definition.find_spec", lambda _: None)
    found = invoke("mine.yaml")
    assert found.exit_code == 2
    assert found.stderr == (
        "error: a search needs the package optuna; in the checkout, type: pip install '.[search]'\n"
    )


def test_a_storage_that_cannot_be_opened_is_exit_4(search):
    found = invoke("mine.yaml --storage nowhere://x")
    assert (found.exit_code, found.stderr.count("\n")) == (4, 1)
    assert not [*ROOT.glob("trials/*")]


def test_a_space_without_a_valid_point_ends_with_a_sentence(search):
    text = SEARCH.replace("[1, 3]", "[3, 5]")
    Path("mine.yaml").write_text(text)
    found = invoke("mine.yaml -j 1")
    assert found.exit_code == 3
    assert "no trial has a result, because no point of the space is valid" in found.stderr
