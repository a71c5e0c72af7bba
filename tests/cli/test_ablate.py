"""`vitcli ablate` as it is typed: what it prints, where, and how it ends."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import STUDY
from vitcli.cli.main import app
from vitcli.runner.study.table import FORMATS, read_document

ROOT = Path("runs/mine")


def invoke(command: str):
    return CliRunner().invoke(app, ["ablate", *shlex.split(command)])


@pytest.fixture
def study(tiny, without_workers) -> None:
    Path("mine.yaml").write_text(STUDY.replace("epochs: 2", "epochs: 1"))


def test_a_study_from_nothing_to_its_table_and_again(study):
    first = invoke("mine.yaml -j 2")
    assert first.exit_code == 0, first.stderr
    assert re.search(r"full/seed0 +test \d+\.\d\d %", first.stderr)
    assert first.stdout.startswith("mine: does it print? Hypothesis: it does & more\n")
    assert "Hypothesis: it does &amp; more" in (ROOT / "report.html").read_text()
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()}
    figures = {f"figures/{name}.{form}" for name in ("forest", "curves") for form in ("svg", "png")}
    tables = {"plan.json", "results.json", "report.html", "table.md", "table.tex", "table.csv"}
    assert figures | tables <= files
    again = invoke("mine.yaml")
    assert again.exit_code == 0
    assert again.stdout == first.stdout, "the same bytes"
    assert "to train" not in again.stderr
    for form in FORMATS:
        shown = invoke(f"mine.yaml --table-only --format {form}")
        assert (shown.exit_code, shown.stderr) == (0, "")
    document = read_document((ROOT / "results.json").read_text())
    stored = json.loads((ROOT / "results.json").read_text())
    assert json.loads(invoke("mine.yaml --format json").stdout) == stored
    assert document.rows[1].changes == {"model.norm": "none"}
    assert invoke("mine.yaml --table-only --checklist answers.md").exit_code == 0
    assert "seed" in Path("answers.md").read_text()


def test_a_dry_run_says_what_it_takes_and_trains_nothing(study):
    result = invoke("mine.yaml --dry-run --seeds 0-5")
    assert result.exit_code == 0
    assert "to train  12 of 12 trials" in result.stdout
    assert "(6 seeds, 1 comparison).\n" in result.stdout, "what it can detect"
    assert not ROOT.exists()


def test_what_is_not_done_is_exit_code_3_and_named(study):
    ROOT.mkdir(parents=True)
    (ROOT / "no-norm").write_text("a file in the way")
    result = invoke("mine.yaml --seeds 0 -j 1")
    assert (result.exit_code, "1 of 1 " in result.stdout) == (3, True), "the table marks it"
    assert "error: 1 of 2 " in result.stderr
