"""`vitcli claims`: what it prints, writes and checks."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.runner.claims import judge
from vitcli.runner.claims.judge import ITEMS, read_recorded

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def claims(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["claims", *words])
    return result.exit_code, result.stdout, result.stderr


def test_the_overview_has_a_line_for_each_claim_and_counts_the_verdicts():
    code, text, talk = claims()
    assert code == 0
    assert len(text.splitlines()) == 42
    assert "next: vitcli claims S0-07" in talk
    counts = re.sub(r"\([^)]*\)", "", talk.partition("next")[0])  # without the settings
    counted = [int(number) for number in re.findall(r"\d+", counts)]
    assert counted[0] == 41 == sum(counted[1:])
    assert " are refuted (of them " in " ".join(talk.split())
    _, everything, talk = claims("--all")
    lines = everything.splitlines()
    assert len(lines) == 125
    assert lines[1].split()[:3] == ["S0-01", "component", "attention"]
    assert "next: vitcli claims S0-01" in talk


def test_a_claim_is_shown_in_full():
    code, text, _ = claims("S2-33")
    assert code == 0
    assert claims("s2-33", "S2-33")[1] == text
    assert "command     vitcli train cifar10-tiny --dry-run" in claims("S0-01")[1]
    for part in (
        "refuted",
        "6,347,082",
        "section IV.B",
        "refuted by",
        "vitcli train cifar10-small",
    ):
        assert part in text


def test_formats(tmp_path):
    records = json.loads(claims("--all", "--format", "json")[1])
    assert [record["id"] for record in records] == list(ITEMS)
    assert sum("verdict" in record for record in records) == 41
    table = claims("S2-33", "S0-01", "--format", "md")[1]
    assert "| S2-33 | about 5.7 million parameters | refuted |" in table
    path = tmp_path / "claims.html"
    assert claims("--all", "-o", str(path))[0] == 0
    page = path.read_text()
    assert all(name in page for name in ITEMS)
    assert claims("--format", "json", "-o", str(tmp_path / "claims"))[0] == 0
    assert len(json.loads((tmp_path / "claims").read_text())) == 41
    assert "default-src 'none'" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["S2-99"], "no claim 'S2-99'; did you mean"),
        (["--format", "pdf"], "choose one of text, md, json, html"),
        (["--check", "--format", "json"], "--check prints text only"),
        (["--results", "experiments/results"], "--results: add --check"),
        (["--all", "S2-21"], "--all lists every item; leave out --all or the ids"),
        (["-o", "claims.pdf"], "-o claims.pdf: end the name with .txt, .md, .json or .html"),
        (["--format", "html", "-o", "claims.txt"], "the name does not fit --format html"),
        (["--format", "json", "-o", "claims.html"], "the name does not fit --format json"),
    ],
)
def test_a_mistake_is_one_line(words, text):
    code, _, talk = claims(*words)
    assert code == 2
    assert text in talk


def test_a_verdict_that_no_longer_follows_fails_the_check(monkeypatch):
    code, _, talk = claims("S2-33", "--check")
    assert (code, talk) == (0, "1 of 1 checked; no verdict differs from the recorded one\n")
    recorded = read_recorded()
    changed = recorded | {"S2-33": replace(recorded["S2-33"], verdict="holds")}
    monkeypatch.setattr(judge, "read_recorded", lambda: changed)
    code, _, talk = claims("S2-33", "--check")
    assert code == 6
    assert "S2-33: refuted, recorded holds" in talk


def test_an_item_without_a_verdict_names_the_command_that_shows_it():
    code, text, _ = claims("S0-01", "--check")
    assert code == 0
    assert text.startswith("S0-01  is a component and has no verdict; to see it, type: vitcli tra")


def test_what_cannot_be_checked_here_is_said(here):
    code, text, talk = claims("S0-16", "--check")
    assert (code, text) == (4, "S0-16  not checked: it needs result files\n")
    assert "1 of 1 not checked; there is no folder experiments/results, type --results" in talk
    code, _, talk = claims("S0-16", "S2-33", "--check")
    assert code == 3
    assert "1 of 2 not checked" in talk
    assert claims("--check", "--results", "nowhere")[0] == 4


def test_results_that_lack_what_a_verdict_needs_are_said(here):
    code, text, _ = claims("S2-18", "S2-68", "S2-33", "--check", "--results", str(here))
    assert code == 3
    assert "S2-18  not checked: no output changes with batch size or padding; stability: n" in text
    recorded = RESULTS / "visualize-cifar10-pocket.json"
    numbers = json.loads(recorded.read_text())
    del numbers["faithfulness"]
    (here / recorded.name).write_text(json.dumps(numbers))
    _, text, _ = claims("S2-68", "--check", "--results", str(here))
    assert text.startswith("S2-68  not checked: not run: no faithfulness numbers of cifar10-pocket")
    rows = json.loads((RESULTS / "ablation-norm.json").read_text()) | {"rows": []}
    (here / "ablation-norm.json").write_text(json.dumps(rows))
    _, text, _ = claims("S2-20", "--check", "--results", str(here))
    assert "ablation-norm.json: damaged; restore it, or delete it" in text


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"null", b"[]", b"{}", b"7", b"[" * 9999])
@pytest.mark.parametrize(
    ("name", "item"),
    [("ablation-cifar10-full", "S0-16"), ("visualize-cifar10-pocket", "S2-46")],
)
def test_a_damaged_result_file_is_named(here, name, item, content):
    path = here / f"{name}.json"
    path.write_bytes(content)
    code, text, talk = claims(item, "S2-33", "--check", "--results", str(here))
    assert code == 3, talk
    assert f"{item}  not checked: {path}: damaged; restore it, or delete it\n" in text
    assert "S2-33  refuted" in text
