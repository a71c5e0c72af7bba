"""The notebook of the course: its cells run in order, its bugs fail, its solutions pass."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.course import NOTEBOOK, RESULT, expected, setting

CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
CODE = {cell["id"]: "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"}
BUGS = [cell["id"] for cell in CELLS if "raises-exception" in cell["metadata"].get("tags", ())]
CHECK = "\n\n\n# check\n"
PROGRAM = """
import json, sys, traceback
import matplotlib
matplotlib.use("agg")
names, ends = {"__name__": "__main__"}, {}
for ident, code in json.load(open(sys.argv[1])).items():
    try:
        exec(compile(code, ident, "exec"), names)
        ends[ident] = "passed"
    except Exception as error:
        ends[ident] = type(error).__name__
        traceback.print_exc()
json.dump(ends, open(sys.argv[2], "w"))
"""


@pytest.mark.ci
def test_all_cells_run_and_each_bug_fails_its_assertion(here, environment):
    Path("cells.json").write_text(json.dumps(CODE))
    command = [sys.executable, "-c", PROGRAM, "cells.json", "ends.json"]
    own = environment | {"VITCLI_DATA": "", "COURSE_QUICK": "1"}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    wanted = {name: "AssertionError" if name in BUGS else "passed" for name in CODE}
    assert json.loads(Path("ends.json").read_text()) == wanted, output


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


def test_the_expected_accuracies_are_those_of_the_setting():
    document = json.loads(RESULT.read_text())
    assert document["setting"] == setting()
    assert {"scenes", "cifar10"} == document["data"].keys()
    for found in document["data"].values():
        assert found == expected(found["seeds"])
        assert {len(seed) for seed in found["seeds"]} == {setting()["fit"]["epochs"]}
