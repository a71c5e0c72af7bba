"""`vitcli ablate` as it is typed: what it prints, where, and how it ends."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitcli.cli.engines import parse_duration
from vitcli.cli.main import app
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.table import FORMATS, read_document

ROOT = Path("runs/mine")


def invoke(command: str):
    return CliRunner().invoke(app, ["ablate", *shlex.split(command)])


@pytest.fixture
def study(tiny) -> None:
    Path("mine.yaml").write_text(
        "question: does it print?\nhypothesis: it does & more\nbase: tiny.yaml\n"
        "train: {epochs: 2}\nseeds: [0, 1]\n"
        "variants: {full: {}, no-norm: {model.norm: none}}\n"
    )


def test_a_study_from_nothing_to_its_table_and_again(study):
    first = invoke("mine.yaml -j 2")
    assert first.exit_code == 0, first.stderr
    assert "study mine (mine.yaml)\n2 variants x 2 seeds: 4 missing\n" in first.stderr
    assert "4 to train, 2 at once" in first.stderr
    assert "making the table, figures and report ...\nmine: does it print? " in first.output
    assert re.search(r"full/seed0 +test \d+\.\d\d %", first.stderr)
    assert first.stdout.startswith("mine: does it print? Hypothesis: it does & more\n")
    assert "no-norm" in first.stdout
    assert "Hypothesis: it does &amp; more" in (ROOT / "report.html").read_text()
    assert "[" in first.stdout, "an interval"
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()}
    assert {
        "plan.json", "results.json", "report.html", "table.md", "table.tex", "table.csv",
        "figures/forest.svg", "figures/forest.png", "figures/curves.svg", "figures/curves.png",
    } <= files  # fmt: skip
    again = invoke("mine.yaml")
    assert again.exit_code == 0
    assert again.stdout == first.stdout, "the same bytes"
    assert "to train" not in again.stderr
    for form in FORMATS:
        shown = invoke(f"mine.yaml --table-only --format {form}")
        assert shown.exit_code == 0
        assert shown.stderr == ""
    document = read_document((ROOT / "results.json").read_text())
    assert json.loads(invoke("mine.yaml --format json").stdout) == json.loads(
        (ROOT / "results.json").read_text()
    )
    assert document.rows[1].changes == {"model.norm": "none"}
    part = invoke("mine.yaml --seeds 0-2 --table-only")
    assert "1 of 3 missing" in part.stdout
    written = invoke("mine.yaml --table-only --checklist answers.md")
    assert written.exit_code == 0
    assert "seed" in Path("answers.md").read_text()


def test_a_dry_run_says_what_it_takes_and_trains_nothing(study):
    result = invoke("mine.yaml --dry-run")
    assert result.exit_code == 0
    assert "no-norm/seed1" in result.stdout
    assert "to train  4 of 4 trials" in result.stdout
    assert re.search(r"time +about", result.stdout)
    assert "timing 2 variants" in result.stderr
    assert re.search(r"disk +\d+ MB", result.stdout)
    assert not ROOT.exists()


def test_a_dry_run_says_that_the_data_is_missing(here):
    """The same note as that of a training."""
    dry = "--dry-run --data-dir nowhere"
    study = invoke(f"ablation-cifar10-tiny --only baseline --seeds 0 {dry}")
    train = CliRunner().invoke(app, ["train", "cifar10-tiny", *dry.split()])
    note = "note: the training would stop here: cifar10 is not in nowhere"
    assert (study.stderr.count(note), train.stderr.count(note)) == (1, 1), study.stderr


def test_what_a_study_can_detect_is_said_in_sentences(study):
    assert "detects   no difference with 1 seed; an interval needs 3 seeds" in (
        invoke("mine.yaml --dry-run --seeds 0").stdout
    )
    assert "detects   no difference with 3 seeds; a p-value needs 6 seeds\n" in (
        invoke("mine.yaml --dry-run --seeds 0-2").stdout
    )
    assert "standard deviations of the paired differences (6 seeds, 1 comparison).\n" in (
        invoke("mine.yaml --dry-run --seeds 0-5").stdout
    )
    assert "(3 seeds, 5 comparisons). Pooled intervals decide; p-values need 8 seeds.\n" in (
        invoke("ablation-quickstart --dry-run").stdout
    )


def test_status_is_a_word_for_each_trial(study):
    result = invoke("mine.yaml --status --seeds 0-1,7")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "variant  seed 0   seed 1   seed 7"
    assert result.stdout.splitlines()[-1] == "6 missing"


def test_what_is_not_done_is_exit_code_3_and_named(study):
    ROOT.mkdir(parents=True)
    (ROOT / "no-norm").write_text("a file in the way")
    result = invoke("mine.yaml --seeds 0 -j 1")
    assert result.exit_code == 3
    assert "1 of 1 " in result.stdout, "the table marks it"
    assert "error: 1 of 2 trials has no result; try them again: vitcli" in result.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mine.yaml --only no-nrom", "did you mean 'no-norm'"),
        ("mine.yaml --seeds 0,0", "seed 0 appears twice"),
        ("mine.yaml --seeds x", "--seeds takes numbers and ranges"),
        ("mine.yaml --format word", "--format word: choose one of text, md, latex"),
        ("mine.yaml --budget 3", "--budget takes a time such as 30m"),
        ("mine.yaml --budget 0h", "--budget takes a time"),
        ("mine.yaml --save mine.yaml", "--save mine.yaml: a file; name a folder"),
        ("quickstart", "an experiment, not a study; train it: vitcli train quickstart"),
        ("ablation-quikstart", "did you mean 'ablation-quickstart'"),
        ("mine.yaml --device gpu", "--device gpu"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(study, command, message):
    result = invoke(command)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()[-1:]
    assert line.startswith("error: ")
    assert message in line
    assert result.stdout == ""
    assert not ROOT.exists()


def test_durations():
    assert [parse_duration(text) for text in ("90s", "30m", "1.5h", "2d")] == [
        90, 1800, 5400, 172800,
    ]  # fmt: skip
    for wrong in ("", "h", "-1h", "1 h 2", "1e3s", "inf"):
        with pytest.raises(ConfigError):
            parse_duration(wrong)
