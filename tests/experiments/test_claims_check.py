"""`claims.py --check` compares the verdicts with the recorded ones."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.claims import claims
from experiments.claims.judge import ITEMS, read_recorded
from vitcli.runner.errors import CheckError, InputError, PartlyError

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def check(results: Path, *names: str) -> None:
    claims.check([ITEMS[name] for name in names], results)


def test_a_verdict_that_no_longer_follows_fails_the_check(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["claims.py", "--check", "S2-33"])
    claims.main()
    assert capsys.readouterr().out.startswith("S2-33  refuted: ")
    recorded = read_recorded()
    changed = recorded | {"S2-33": replace(recorded["S2-33"], verdict="holds")}
    monkeypatch.setattr(claims, "read_recorded", lambda: changed)
    with pytest.raises(SystemExit) as stopped:
        claims.main()
    assert stopped.value.code == CheckError.exit_code
    assert "S2-33: refuted, recorded holds" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["S2-99", "S0-01"])
def test_an_item_without_a_verdict_cannot_be_checked(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["claims.py", "--check", name])
    with pytest.raises(SystemExit) as stopped:
        claims.main()
    assert stopped.value.code == 2


def test_results_that_lack_what_a_verdict_needs_are_said(here, capsys):
    with pytest.raises(PartlyError, match="2 of 3 not checked"):
        check(here, "S2-18", "S2-68", "S2-33")
    assert capsys.readouterr().out.startswith("S2-18  not checked: no output changes with batch")
    recorded = RESULTS / "visualize-cifar10-pocket.json"
    numbers = json.loads(recorded.read_text())
    del numbers["faithfulness"]
    (here / recorded.name).write_text(json.dumps(numbers))
    rows = json.loads((RESULTS / "ablation-norm.json").read_text()) | {"rows": []}
    (here / "ablation-norm.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match="2 of 2 not checked"):
        check(here, "S2-68", "S2-20")
    without_maps, without_rows = capsys.readouterr().out.splitlines()
    assert without_maps.startswith("S2-68  not checked: not run: no faithfulness numbers")
    assert "ablation-norm.json: damaged" in without_rows


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"null", b"[]", b"{}", b"7", b"[" * 9999])
@pytest.mark.parametrize(
    ("name", "item"),
    [("ablation-cifar10-full", "S0-16"), ("visualize-cifar10-pocket", "S2-46")],
)
def test_a_damaged_result_file_is_named(here, name, item, content, capsys):
    path = here / f"{name}.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        check(here, item)
    assert capsys.readouterr().out.startswith(f"{item}  not checked: {path}: damaged")
