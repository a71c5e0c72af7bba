"""Scripts in experiments/speed/; tests/gpu_stub/test_errors.py runs all stages of gpu.sh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "experiments" / "speed"
pytestmark = pytest.mark.slow


def test_without_data_the_trainings_are_skipped_and_the_exit_code_says_so(here, environment):
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment |= {"OUT": str(here / "out"), "DATA": str(here), "PATH": path}
    command = ["bash", str(SCRIPTS / "gpu.sh"), "small", "ablation"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout.count("skipped: DATA: ") == 2
    assert not list((here / "out").glob("**/small*"))


def test_a_large_study_is_made_and_timed(here, environment):
    script = [sys.executable, str(SCRIPTS / "large_study.py"), "--variants", "2", "--seeds", "3"]
    subprocess.run([*script, "-o", "large.json"], env=environment, check=True)
    found = json.loads(Path("large.json").read_text())
    assert found["trials"] == 6
    assert {"status", "table", "page of runs", "plan", "report"} == found["seconds"].keys()
