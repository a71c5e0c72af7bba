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


def with_python(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which ``python`` is the interpreter of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    return environment | {"PATH": path}


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=with_python(environment), capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_all_stages_for_a_gpu_run_at_toy_size(here, environment):
    environment["OUT"] = str(here / "out")
    run(["bash", str(SCRIPTS / "gpu.sh"), "--toy", "--pack", str(here / "packed")], environment)
    out = here / "out" / "toy"
    found = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert {each["state"] for each in found.values()} == {"done"}
    assert len({each["stage"] for each in found.values()}) == 10
    assert found["attention"]["result"]["rows"][0]["points"][0]["tokens"] == 64
    assert found["share-cifar10-base-p2"]["result"]["matmul_share"] > 0
    assert found["small"]["result"]["metrics"][-1]["epoch"] == 1
    assert found["resume"]["result"]["exact"]
    text = json.dumps(found)
    assert str(here) not in text
    assert str(SCRIPTS.parents[1]) not in text
    assert '"/' not in text, "a path of this machine"
    assert (here / "packed" / "results.tar.gz").stat().st_size < 16 * 2**20


def test_without_data_the_trainings_are_skipped_and_the_exit_code_says_so(here, environment):
    environment |= {"OUT": str(here / "out"), "DATA": str(here)}
    command = ["bash", str(SCRIPTS / "gpu.sh"), "small", "ablation"]
    done = subprocess.run(command, env=with_python(environment), capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout.count("skipped: DATA: ") == 2
    assert not list((here / "out").glob("**/small*"))


def test_a_large_study_is_made_and_timed(here, environment):
    script = [sys.executable, str(SCRIPTS / "large_study.py"), "--variants", "2", "--seeds", "3"]
    run([*script, "-o", str(here / "large.json")], environment)
    found = json.loads((here / "large.json").read_text())
    assert found["trials"] == 6
    assert {"status", "table", "page of runs", "plan", "report"} == found["seconds"].keys()
