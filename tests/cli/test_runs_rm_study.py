"""`vitcli runs rm` on a study: what it asks, removes and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fabricated import make_run
from tests.terminal import run_in_terminal
from vitcli.cli.main import app
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import hold_folder

pytestmark = pytest.mark.usefixtures("here")
STUDY = Path("runs/parts")


@pytest.fixture
def study() -> Path:
    """A study of three trials, of which one never started, with its report and logs."""
    for trial in ("full/seed0", "full/seed1", "no-ffn/seed0"):
        make_run(0, folder=STUDY / trial)
    (STUDY / "no-ffn/seed1").mkdir()
    (STUDY / "no-ffn/seed1/.lock").touch()
    commit_json(STUDY / "plan.json", {"study": "parts", "trials": {}})
    for name in ("results.json", "report.html", "table.md", "figures/forest.svg"):
        (STUDY / name).parent.mkdir(exist_ok=True)
        (STUDY / name).write_text("x" * 125_000)
    return STUDY


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["runs", "rm", *map(str, words)])
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", ["parts", STUDY])
def test_a_study_is_removed_with_its_trials_and_its_report(study, name):
    assert vitcli(name, "--yes") == (0, "removed parts\n", "")
    assert list(Path("runs").iterdir()) == []


def test_several_studies_and_runs_at_once(study):
    run = make_run(3)
    found = json.loads(vitcli("parts", run.name, "--yes", "--json")[1])
    assert found == {"removed": ["parts", "quickstart/train/seed3"]}
    assert list(Path("runs").iterdir()) == []


def test_a_trial_named_beside_its_study_is_removed_once(study):
    assert vitcli("parts", "parts/full/seed0", "--yes")[0] == 0
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize(("answer", "kept"), [(b"y\n", False), (b"n\n", True)])
def test_the_question_names_the_trials_and_the_size(study, environment, answer, kept):
    code, screen = run_in_terminal(
        "runs", "rm", "parts", environment=environment, width=80, typed=answer
    )
    assert code == 0
    assert "remove study parts (3 trials, 0.5 MB)? [y/N]" in screen
    assert ("nothing was removed" in screen) is kept
    assert study.exists() is kept


def test_without_a_terminal_it_takes_yes(study):
    code, out, talk = vitcli("parts")
    assert (code, out) == (2, "")
    assert talk.endswith("without a terminal, type --yes\n")
    assert study.exists()


@pytest.mark.parametrize("held", ["", "no-ffn/seed0"])
def test_a_running_study_or_trial_is_refused(study, environment, held):
    idle = make_run(5)
    words = ["runs", "rm", "-y", idle.name, "parts"]
    with hold_folder(study / held, "in use"):
        done = subprocess.run(
            [sys.executable, "-m", "vitcli", *words],
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 7
    assert done.stderr.startswith("error: ")
    assert "another process is" in done.stderr
    assert idle.exists
    assert len(list(study.rglob("config.yaml"))) == 3
    assert (study / "report.html").exists()


def test_a_folder_of_another_program_is_left_alone():
    Path("project/figures").mkdir(parents=True)
    Path("project/figures/mine.png").touch()
    Path("project/plan.json").write_text("{}")
    assert vitcli("project", "-y")[0] == 4
    assert Path("project/figures/mine.png").exists()


def test_files_of_others_stay_and_are_named(study):
    (study / "notes.txt").write_text("mine")
    code, _, talk = vitcli("parts", "-y")
    assert code == 0
    assert talk.startswith("not removed, because vitcli did not write it: ")
    assert talk.endswith("runs/parts/notes.txt\n")
    assert [path.name for path in study.iterdir() if path.name != ".lock"] == ["notes.txt"]


def test_files_that_vitcli_did_not_write_stay(study):
    run = make_run(4)
    own = [
        *(study / name for name in ("notes.txt", "figures/mine.png", "logs/mine.txt")),
        run.checkpoints / "1/mine.txt",
    ]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    code, _, talk = vitcli("parts", run.name, "--yes")
    assert code == 0
    left = {path for path in Path("runs").rglob("*") if path.is_file() and path.name != ".lock"}
    assert left == {*own}
    assert talk.count("not removed, because vitcli did not write it") == len(own)


def test_checkpoints_behind_a_link_stay(study):
    run = make_run(4)
    elsewhere = run.checkpoints.rename("elsewhere")
    run.checkpoints.symlink_to(elsewhere.resolve())
    before = sorted(elsewhere.rglob("*"))
    assert vitcli(run.name, "--yes")[0] == 0
    assert sorted(elsewhere.rglob("*")) == before
