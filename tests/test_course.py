"""The notebook of the course: its cells run in order, its bugs fail, its solutions pass."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.course import NOTEBOOK, RESULTS, expected, setting
from experiments.minutes import QUICK, execute, seconds_of_sections

CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
BUGS = [cell["id"] for cell in CELLS if "raises-exception" in cell["metadata"].get("tags", ())]
CHECK = "\n\n\n# check\n"


@pytest.mark.ci
def test_all_cells_of_the_course_run_and_each_bug_fails_its_assertion(here, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[2]))
    monkeypatch.setenv("VITCLI_DATA", "")
    fewer = [('"images": 5000, "epochs": 5', '"images": 640, "epochs": 1'), ("seeds=3", "seeds=2")]
    assert all(old in CODE["setting"] + CODE["ablate"] for old, _ in fewer)
    notebook = execute("course", [QUICK, *fewer], here, allow_errors=True)
    ends = {
        cell.id: [output.ename for output in cell.outputs if output.output_type == "error"]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert ends == {name: ["AssertionError"] * (name in BUGS) for name in CODE}
    assert seconds_of_sections(notebook).keys() >= {"3. Train", "4. Ablate"}


@pytest.mark.parametrize("is_on_colab", [False, True])
@pytest.mark.parametrize("address", ["", "https://github.com/OWNER/vitcli"])
def test_the_first_cell_installs_on_colab_and_else_says_nothing(
    here, monkeypatch, capsys, is_on_colab, address
):
    typed: list[list[str]] = []

    def run(words, check):
        typed.append(words)
        if "clone" in words:
            Path(words[-1]).mkdir()

    monkeypatch.setattr(subprocess, "run", run)
    if is_on_colab:
        monkeypatch.setitem(sys.modules, "google.colab", sys)
    cell = CODE["colab"].replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
    if is_on_colab and not address:
        with pytest.raises(SystemExit, match="REPOSITORY is empty"):
            exec(cell, {})  # noqa: S102
        return
    exec(cell, {})  # noqa: S102
    clone = ["git", "clone", "-q", "--depth", "1", address, "vitcli"]
    install = [sys.executable, "-m", "pip", "install", "-q", "./vitcli"]
    assert typed == ([clone, install] if is_on_colab else [])
    assert Path.cwd() == (here / "vitcli" if is_on_colab else here)
    assert capsys.readouterr() == ("", "")


def test_the_link_to_colab_needs_one_setting(monkeypatch):
    monkeypatch.syspath_prepend(str(NOTEBOOK.parents[2] / ".ci"))
    notebooks = importlib.import_module("notebooks")
    assert "`repo_url`" in notebooks.colab("course")
    monkeypatch.setattr(notebooks, "repository", lambda: "https://github.com/OWNER/vitcli")
    place = "colab.research.google.com/github/OWNER/vitcli/blob/main/docs/tutorials/course.ipynb"
    assert place in notebooks.colab("course")
    assert 'REPOSITORY = "https://github.com/OWNER/vitcli"' in notebooks.first_cell()


def test_each_bug_has_a_solution_that_passes_the_same_check():
    solved = {name.replace("solution-", "bug-") for name in CODE if name.startswith("solution-")}
    assert (len(BUGS), solved) == (5, {*BUGS})
    for bug in BUGS:
        wrong, check = CODE[bug].split(CHECK)
        right, same = CODE[bug.replace("bug-", "solution-")].split(CHECK)
        assert ("assert " in check, check) == (True, same)
        assert ast.parse(wrong).body[0].name == ast.parse(right).body[0].name
        assert wrong != right


def test_the_notebook_is_committed_without_outputs():
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert all((cell["execution_count"], cell["outputs"]) == (None, []) for cell in code)


@pytest.mark.parametrize("quick", [False, True])
def test_the_expected_accuracies_are_those_of_the_setting(quick):
    document = json.loads(RESULTS[quick].read_text())
    assert document["setting"] == setting(quick)
    assert "scenes" in document["data"]
    for found in document["data"].values():
        assert found == expected(found["seeds"])
        assert {len(seed) for seed in found["seeds"]} == {setting(quick)["fit"]["epochs"]}
