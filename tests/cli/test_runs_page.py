"""`vitcli runs page` and `runs export`: what they write, and what they never replace."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli import commands
from tests.fabricated import make_run
from tests.fabricated_runs import STUDY, make_study_folder

pytestmark = pytest.mark.usefixtures("here")
vitcli = partial(commands.vitcli, "runs")
export = partial(commands.vitcli, "runs", "export", "--format", "csv", "-o", "table")


def test_the_page_lies_in_the_folder_and_can_be_written_again():
    make_study_folder({"full/seed0": "finished"})
    (make_run(0).path / "config.yaml").write_text("a: [")
    for _ in range(2):
        code, out, err = vitcli("page")
        assert (code, out) == (0, "page    runs/index.html\nholds   2 runs and 1 study\n")
        assert err.startswith("damaged: quickstart/train/seed0: config.yaml ")
    found = json.loads(vitcli("page", "runs/parts", "-o", "parts.html", "--json")[1])
    assert found == {"page": "parts.html", "runs": 1, "studies": 1, "damaged": []}


def test_another_file_is_never_replaced_and_rm_leaves_it():
    make_study_folder({"full/seed0": "finished"})
    (STUDY / "index.html").write_text("mine")
    assert vitcli("page", STUDY)[0] == 2
    assert vitcli("rm", "parts", "--yes")[0] == 0
    assert (STUDY / "index.html").read_text() == "mine"
    (STUDY / "index.html").unlink()
    make_study_folder({"full/seed0": "finished"})
    assert vitcli("page", STUDY)[0] == 0
    assert vitcli("rm", "parts", "--yes") == (0, "removed parts\n", "")
    assert not STUDY.exists()


def test_csv_is_written_and_named():
    for seed in (0, 1):
        make_run(seed)
    assert export() == (0, "table/runs.csv\ntable/curves.csv\n", "exported 2 runs\n")
    code, out, _ = export("quickstart/train/seed1", "--json")
    files = ["table/runs.csv", "table/curves.csv"]
    assert (code, json.loads(out)) == (0, {"files": files, "runs": ["quickstart/train/seed1"]})
    assert len(Path("table/runs.csv").read_text().splitlines()) == 2, "the file is replaced"


@pytest.mark.parametrize(("healthy", "code"), [(1, 3), (0, 4)])
def test_a_damaged_run_is_named_and_gives_its_exit_code(healthy, code):
    for seed in range(healthy):
        make_run(seed)
    (make_run(7).path / "metrics.jsonl").write_text("{\n")
    found, _, talk = export()
    assert (found, "seed7/metrics.jsonl:1: not a record" in talk) == (code, True)
    assert Path("table/runs.csv").exists() == bool(healthy)
