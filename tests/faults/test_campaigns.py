"""The campaigns: short ones here, longer ones in ``-m ci``, the longest in ``-m slow``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
SHORT = {"kills": 2, "crash_points": 4, "power_loss": 1, "races": 1, "stops": 1}
LONGER = {"kills": 12, "crash_points": 20, "power_loss": 3, "races": 4, "stops": 2}
LONG = {"kills": 1000, "crash_points": 0, "power_loss": 100, "races": 200, "stops": 100}


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


IN_TURN = """
import json, os, sys
from importlib import import_module
from pathlib import Path

os.environ["VITCLI_CACHE"] = str(Path(sys.argv[2]) / "cache")  # kernels are compiled once
seed = int(sys.argv[3])
for name, count in json.loads(sys.argv[1]).items():
    scratch = Path(sys.argv[2]) / name
    scratch.mkdir()
    campaign = import_module(f"tests.faults.{name}").campaign
    print(json.dumps({"campaign": name, **campaign(scratch, count, seed)}), flush=True)
"""


@pytest.mark.parametrize(
    ("counts", "seed"),
    [
        pytest.param(SHORT, 0, marks=pytest.mark.short),
        pytest.param(LONGER, 1, marks=pytest.mark.ci),
    ],
)
def test_nothing_is_lost(tmp_path, counts, seed):
    """All campaigns in one process: importing torch takes longer than some of them."""
    lines = run("-c", IN_TURN, json.dumps(counts), str(tmp_path), str(seed)).splitlines()
    found = {each["campaign"]: each for each in map(json.loads, lines)}
    assert found.keys() == counts.keys()
    lost = {name: each["failures"] for name, each in found.items()}
    assert not any(lost.values()), lost
    assert found["kills"]["kills"] >= counts["kills"], "fewer were killed than was asked for"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_nothing_is_lost_in_the_long_run(name):
    run("-m", f"tests.faults.{name}", "--count", str(LONG[name]), "--seed", "0")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_planted_bug_is_caught():
    run("-m", "tests.faults.mutants")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_code_that_a_mutant_changes_is_there_once(mutant):
    """Code that was moved would otherwise be noticed only when all mutants are run."""
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
