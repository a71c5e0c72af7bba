"""Training steps on the stub GPU: no mixed devices, no waits, few launches."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from tests.gpu_stub import steps
from tests.gpu_stub.stub import ask_once, ask_stub
from tests.gpu_stub.test_data import ASK

GROUPS = {"experiment_cases": steps.experiment_cases(), "row_cases": steps.row_cases()}
REDRAWN = "the features are drawn on the host, and copied from pinned memory"
KNOWN: dict[str, dict[str, str]] = {
    "waits": {},
    "copies": {"redrawn performer": REDRAWN, "redrawn performer, graph": REDRAWN},
    "unpinned": {},
    "messages": {},
}
"""What a step must not do -> case that does it -> why. A mended case must leave this table."""
STALE = 0.75
"""Share of a ceiling below which it says nothing any more and must be counted again."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.ci) for name in GROUPS])
def rows(request) -> dict[str, dict[str, Any]]:
    code = "import json; from tests.gpu_stub import steps\n"
    code += f"print(json.dumps(steps.count_all(steps.{request.param}())))"
    found: dict[str, dict[str, Any]] = ask_once(f"steps-{request.param}", code)
    assert found.keys() == labels(GROUPS[request.param])
    return found


def labels(cases: Iterable[str]) -> set[str]:
    return {label for case in cases for label in (case, f"{case}, graph")}


def test_steps_run_on_one_device(rows):
    assert {label: row["error"] for label, row in rows.items() if "error" in row} == {}


@pytest.mark.parametrize("kind", KNOWN)
def test_steps_neither_wait_nor_copy_from_the_host_nor_complain(rows, kind):
    known = KNOWN[kind]
    found = {label: row.get(kind) for label, row in rows.items() if row.get(kind)}
    assert {label: places for label, places in found.items() if label not in known} == {}
    assert known.keys() & rows.keys() <= found.keys(), "a mended case must leave the table"


def test_steps_launch_no_more_than_the_committed_ceilings(rows):
    committed = json.loads(steps.CEILINGS.read_text())
    is_same = torch.__version__.startswith(committed["torch"])
    most = {k: v * (1 if is_same else 1.25) for k, v in committed["launches"].items()}
    launches = {label: row["launches"] for label, row in rows.items()}
    above = {label: n for label, n in launches.items() if n > most.get(label, 0)}
    assert above == {}, "launches above tests/gpu_stub/ceilings.json"
    stale = {label: n for label, n in launches.items() if n < STALE * most[label]}
    assert not (is_same and stale), f"count the ceilings again, see steps.py: {stale}"


def test_every_ceiling_belongs_to_a_case():
    committed = json.loads(steps.CEILINGS.read_text())["launches"]
    assert committed.keys() == labels([*steps.EXPERIMENTS, *steps.row_cases()])


@pytest.mark.ci
@pytest.mark.parametrize("name", steps.COMPILED)
def test_a_compiled_step_launches_no_more_than_committed(name, tmp_path):
    committed = json.loads(steps.CEILINGS.read_text())
    code = f"import json; from tests.gpu_stub import steps; name = {name!r}\n"
    code += "print(json.dumps(steps.compiled_launches(name, **steps.SHORT)))"
    found = ask_stub(code, cwd=tmp_path)
    most = committed["compiled, 2 blocks"][name]
    is_same = torch.__version__.startswith(committed["torch"])
    assert found <= most * (1 if is_same else 1.25)
    assert found >= STALE * most or not is_same


def test_a_step_that_cannot_be_captured_is_taken_eagerly():
    """It reads a number on the host, in the forward pass or between scaling and optimiser."""
    for taken, messages in ask_once("data", ASK)["refused"]:
        assert taken == list(range(1, 13))
        assert len(messages) == 1
        assert "captur" in messages[0]
