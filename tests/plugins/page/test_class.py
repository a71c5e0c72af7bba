"""docs/how-to/class.md: a class in one folder, and its board."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import document, said
from tests.fabricated import make_run, make_study_folder, record
from tests.test_docs import ROOT, blocks
from vitcli.runner.run.folder import RUNS, RunDir, list_runs

PAGE = ROOT / "docs" / "how-to" / "class.md"
STUDENTS = ("anna", "ben")
TEST, VAL = 0.83125, 0.71875
BRIEF = ("--epochs", "0", "-s", "model.depth=1")


def lines(beginning: str) -> list[str]:
    text = "\n".join(blocks(PAGE, "bash"))
    return [line for line in text.splitlines() if line.startswith(beginning)]


def test_students_in_one_folder_get_a_run_each_and_stand_on_the_board(here, monkeypatch):
    assert lines("mkdir") == ["mkdir anna && cd anna"]
    (train,) = lines("vitcli train")
    for student in STUDENTS:
        (here / student).mkdir()
        monkeypatch.chdir(here / student)
        said(0, *shlex.split(train)[1:], *BRIEF)
    monkeypatch.chdir(here)
    assert len(list_runs(Path())) == 2
    for command in lines("vitcli runs page"):
        found = document(*shlex.split(command)[1:])
        assert found["runs"] == 2
        page = Path(found["page"]).read_text()
        assert all(f'"{student}/runs/quickstart/' in page for student in STUDENTS)
        assert ("test_accuracy" in page) != ("--split val" in command)


@pytest.fixture
def board(here) -> str:
    """The page on validation images, of runs with results of both kinds, or with one of them."""
    make_study_folder({"full/seed0": "finished"})
    measured = {"test_accuracy": TEST, "val_accuracy": VAL}
    anna = make_run(0, folder=RUNS / "anna/a", result=measured)
    anna.set_metrics([record(epoch, 0.5) | measured for epoch in range(1, 9)])
    make_run(0, folder=RUNS / "ben/b")
    found = document("runs", "page", "--sort", "score", "--split", "val", "-o", "board.html")
    assert found["notes"] == [
        "no val result: parts/full/seed0, ben/b; -s data.val_split=0.1 sets validation images aside"
    ]
    return Path("board.html").read_text()


def test_a_board_holds_no_test_result_until_the_teacher_reveals_it(board):
    data = json.loads(re.search(r'id="data">(.*?)</script>', board)[1])
    assert {run["name"]: run["score"] for run in data["runs"]} == {
        "anna/a": VAL, "ben/b": None, "parts/full/seed0": None,
    }  # fmt: skip
    hidden = [str(TEST), "test_"]
    assert [text for text in hidden if text in board] == []
    document("runs", "page", "--sort", "score", "-o", "board.html")
    assert [text for text in hidden if text not in Path("board.html").read_text()] == []


@pytest.mark.browser
def test_a_board_opens_with_the_best_first_and_a_column_of_names(board, browser):
    make_run(0, folder=RUNS / "chris/c", result={"val_accuracy": VAL + 0.1})
    document("runs", "page", "--sort", "score", "--split", "val", "-o", "board.html")
    shown = browser.open(Path("board.html").absolute().as_uri())
    rows = "[...document.querySelectorAll('#table tbody tr')]"
    cells = f"{rows}.map(row => [1, 3].map(i => row.children[i].textContent))"
    assert shown.evaluate(cells)[:2] == [["chris", "81.88 % val"], ["anna", "71.88 % val"]]
    for number in range(5):
        weak = {"val_accuracy": VAL - 0.1}
        make_run(0, folder=RUNS / f"ada/{number}", result=weak, meta={"started": "2099-01-01"})
    document("runs", "page", "--sort", "score", "--split", "val", "-o", "board.html")
    shown = browser.open(Path("board.html").absolute().as_uri())
    checked = f"{rows}.map(row => row.querySelector('input').checked)"
    assert shown.evaluate(checked)[:7] == [True] * 6 + [False], "the curves of the best"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "ben-quickstart"),
        (("quickstart", "--seed", "0"), "ben-quickstart"),
        (("--name", "pets"), "pets-2"),
        (("-o", "runs/pets"), None),
        (("quickstart", "--resume", "auto"), None),
    ],
)
def test_a_run_in_use_is_answered_by_a_command_that_works(here, monkeypatch, words, name):
    monkeypatch.setenv("LOGNAME", "ben")
    make_run(0)
    make_run(0, folder=RUNS / "pets")
    with RunDir(RUNS / "quickstart/train/seed0").lock(), RunDir(RUNS / "pets").lock():
        talk = said(7, "train", *words)
    assert "another process is using" in talk
    command = talk.partition("type: ")[2].strip()
    if name is None:
        assert command == ""
    else:
        assert command.endswith(f"--name {name}" if name != "pets-2" else name)
        assert "folder runs/" in said(0, *shlex.split(command)[1:], *BRIEF)
