"""`vitcli runs page`: where it writes, what it refuses, and what `runs rm` makes of the page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fabricated import make_run
from tests.fabricated_runs import STUDY, make_study_folder
from tests.patience import HANG
from vitcli.cli.main import app
from vitcli.runner.run.folder import RUNS

pytestmark = pytest.mark.usefixtures("here")


def vitcli(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["runs", *map(str, words)])
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def test_the_page_lies_in_the_folder_and_can_be_written_again():
    make_study_folder({"full/seed0": "finished"})
    (make_run(0).path / "config.yaml").write_text("a: [")
    for _ in range(2):
        code, out, err = vitcli("page")
        assert (code, out) == (0, "page    runs/index.html\nholds   2 runs and 1 study\n")
        address = Path("runs/index.html").resolve().as_uri()
        damaged = "damaged: quickstart/train/seed0: config.yaml cannot be read"
        first, last = err.splitlines()
        assert first.startswith(f"{damaged}: config.yaml:2: ")
        assert last == f"next: open {address} in a browser"
    found = json.loads(vitcli("page", "runs/parts", "-o", "parts.html", "--json")[1])
    assert found == {"page": "parts.html", "runs": 1, "studies": 1, "damaged": []}
    assert Path("parts.html").read_text().startswith("<!DOCTYPE html>")


def test_another_file_is_never_replaced():
    make_run(0)
    Path("runs/index.html").write_text("mine")
    code, _, err = vitcli("page")
    assert (code, err.strip()) == (
        2,
        "error: runs/index.html: not a page of runs; name another file with -o",
    )
    assert Path("runs/index.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing"], 4, "nothing: no such folder"),
        (["empty"], 4, "empty: holds no run"),
        (["runs", "-o", "empty"], 2, "empty: not a page of runs"),
    ],
)
def test_a_mistake_is_told_in_one_line(words, code, told):
    make_run(0)
    Path("empty").mkdir()
    found = vitcli("page", *words)
    assert found[:2] == (code, "")
    assert told in found[2]
    assert found[2].count("\n") == 1


def test_rm_removes_the_page_of_a_study_and_no_page_of_another_program():
    make_study_folder({"full/seed0": "finished"})
    assert vitcli("page", STUDY)[0] == 0
    assert vitcli("rm", "parts", "--yes") == (0, "removed parts\n", "")
    assert not STUDY.exists()
    make_study_folder({"full/seed0": "finished"})
    (STUDY / "index.html").write_text("mine")
    told = vitcli("rm", "parts", "--yes")[2]
    assert told.startswith("not removed, because vitcli did not write it: ")
    assert told.endswith("/runs/parts/index.html\n")
    assert (STUDY / "index.html").read_text() == "mine"


def test_it_loads_no_torch(environment):
    make_run(0)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vitcli", "runs", "page"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "vitcli.runner.overview.page" in loaded, "imports were seen"
    assert not loaded & {"torch", "numpy", "matplotlib"}
    assert (RUNS / "index.html").is_file()
