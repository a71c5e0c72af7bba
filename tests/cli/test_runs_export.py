"""`vitcli runs export`: what is printed, and the exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fabricated import make_run
from vitcli.cli.main import app

pytestmark = pytest.mark.usefixtures("here")


def export(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["runs", "export", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_csv_is_written_and_named():
    make_run(0)
    make_run(1)
    assert export("--to", "csv", "-o", "table") == (
        0,
        "table/runs.csv\ntable/curves.csv\n",
        "exported 2 runs\n",
    )
    code, out, _ = export("quickstart/train/seed1", "--to", "csv", "-o", "table", "--json")
    assert code == 0
    assert json.loads(out) == {
        "files": ["table/runs.csv", "table/curves.csv"],
        "runs": ["quickstart/train/seed1"],
    }
    assert len(Path("table/runs.csv").read_text().splitlines()) == 2, "the file is replaced"


@pytest.mark.parametrize(("healthy", "code"), [(1, 3), (0, 4)])
def test_a_damaged_run_is_named_and_gives_its_exit_code(healthy, code):
    for seed in range(healthy):
        make_run(seed)
    (make_run(7).path / "metrics.jsonl").write_text("{\n")
    found, _, talk = export("--to", "csv", "-o", "table")
    assert found == code
    assert "seed7/metrics.jsonl:1: not a record" in talk
    assert f"1 of {healthy + 1} runs could not be read" in talk
    assert Path("table/runs.csv").exists() == bool(healthy)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--to", "csv", "-o", "x"], 4, "no runs yet; start with: vitcli train"),
        (["--to", "wandb", "-o", "x"], 2, "--to takes one of csv, mlflow"),
        (
            ["--to", "csv"],
            2,
            "type for example: vitcli runs export --to csv -o table",
        ),
        (["nothing", "--to", "csv", "-o", "x"], 4, "no run is called 'nothing'"),
    ],
)
def test_a_mistake_is_one_line(words, code, told):
    found, out, talk = export(*words)
    assert (found, out) == (code, "")
    assert told in talk


def test_the_folder_of_an_export_is_no_file():
    make_run(0)
    Path("table").touch()
    code, _, talk = export("--to", "csv", "-o", "table")
    assert code == 2
    assert "cannot write to table" in talk
