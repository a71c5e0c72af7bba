"""The campaigns: short, longer in ``.ci/run`` (``-m slow -k share``), long with ``-m slow``.

A failure prints what repeats it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = {"kills": 8, "crash_points": 12, "power_loss": 2, "damage": 60, "races": 2, "stops": 1}
SHARE = {"kills": 20, "crash_points": 30, "power_loss": 3, "damage": 200, "races": 4, "stops": 3}
ROWS = {
    **{"kills": "F01", "crash_points": "F02-F03-F04-F21-F26", "power_loss": "F14"},
    **{"damage": "F28-F29", "races": "F31", "stops": "F05-F06-F07-F09"},
}
"""The rows of the fault matrix that a campaign is about."""
LONG = {
    **{"kills": 1000, "crash_points": 0, "power_loss": 100, "damage": 2000, "races": 200},
    **{"stops": 100, "ablations": 50},
}


def run(name: str, count: int, seed: int = 0) -> dict:
    words = ["-m", f"tests.faults.{name}", "--count", str(count), "--seed", str(seed)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: dict = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SHORT, ids=lambda name: f"{ROWS[name]}-{name}")
def test_nothing_is_lost(name):
    found = run(name, SHORT[name])
    assert found["campaign"] == name
    if name == "kills":
        assert found["kills"] >= SHORT[name], "fewer were killed than was asked for"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARE)
def test_nothing_is_lost_in_the_share_of_every_change(name):
    run(name, SHARE[name], seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_nothing_is_lost_in_the_long_run(name):
    run(name, LONG[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_planted_bug_is_caught():
    words = [sys.executable, "-m", "tests.faults.mutants"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
