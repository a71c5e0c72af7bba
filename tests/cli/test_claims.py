"""`vitcli claims`: what it prints, writes and checks."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.runner.claims import judge
from vitcli.runner.claims.judge import ITEMS, read_recorded


def claims(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["claims", *words])
    return result.exit_code, result.stdout, result.stderr


def test_the_overview_has_a_line_for_each_claim_and_counts_the_verdicts():
    code, text, talk = claims()
    assert code == 0
    assert len(text.splitlines()) == 42
    assert "next: vitcli claims S0-07" in talk
    for word in {finding.verdict for finding in read_recorded().values()}:
        assert word in talk
    assert len(claims("--all")[1].splitlines()) == 125


def test_a_claim_is_shown_in_full():
    code, text, _ = claims("S2-33")
    assert code == 0
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
    assert claims("--all", "--format", "html", "-o", str(path))[0] == 0
    page = path.read_text()
    assert all(name in page for name in ITEMS)
    assert "default-src 'none'" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["S2-99"], "no claim 'S2-99'; did you mean"),
        (["--format", "pdf"], "choose one of text, md, json, html"),
        (["--check", "--results", "nowhere"], "--results nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line(words, text):
    code, _, talk = claims(*words)
    assert code == 2
    assert text in talk


def test_a_verdict_that_no_longer_follows_fails_the_check(monkeypatch):
    assert claims("S2-33", "--check")[0] == 0
    recorded = read_recorded()
    changed = recorded | {"S2-33": replace(recorded["S2-33"], verdict="holds")}
    monkeypatch.setattr(judge, "read_recorded", lambda: changed)
    code, _, talk = claims("S2-33", "--check")
    assert code == 6
    assert "S2-33: refuted, recorded holds" in talk


def test_an_item_without_a_verdict_names_the_command_that_shows_it():
    code, text, _ = claims("S0-01", "--check")
    assert code == 0
    assert text.startswith("S0-01  nothing to check: a component; vitcli train cifar10-tiny")


def test_what_cannot_be_checked_here_is_said(here):
    code, text, _ = claims("S0-16", "--check")
    assert code == 0
    assert "S0-16  not checked: its results are not in experiments/results" in text
