"""The scripts in experiments/speed/ run at toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

SCRIPTS = Path(__file__).parents[1] / "experiments" / "speed"
pytestmark = pytest.mark.slow


def run(command: list[str], environment: dict[str, str]) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        command, env=environment | {"PATH": path}, capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_stage_for_the_gpu_writes_its_json_at_once(here, environment):
    environment["OUT"] = str(here / "out")
    run(["bash", str(SCRIPTS / "gpu.sh"), "attention", "strong"], environment)
    found = json.loads((here / "out" / "attention.json").read_text())
    assert found["rows"][0]["points"][0]["tokens"] == 64
    assert not list((here / "out").glob("strong*"))  # DATA is not set


def test_a_killed_training_is_compared_with_an_uninterrupted_one(here, environment):
    script = [sys.executable, str(SCRIPTS / "resume_exact.py"), "--device", "cpu"]
    run([*script, "-o", str(here / "resume.json")], environment)
    assert json.loads((here / "resume.json").read_text())["exact"]


def test_peers_take_turns(here, environment):
    pytest.importorskip("transformers", reason="pip install '.[bench]'")
    script = [sys.executable, str(SCRIPTS / "peers.py"), "--models", "tiny", "--parts", "step"]
    run([*script, "--rounds", "1", "--seconds", "0", "-o", str(here / "peers.json")], environment)
    (row,) = json.loads((here / "peers.json").read_text())
    assert len(row["contenders"]) == 9
    assert row["ratio"] == pytest.approx(row["ours"] / row["fastest_peer"], rel=0.01)


def test_pinned_workers_are_compared(here, environment):
    run([sys.executable, str(SCRIPTS / "pinned_workers.py"), "1", "1"], environment)
