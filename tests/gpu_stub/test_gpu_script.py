"""All stages of experiments/speed/gpu.sh run to their end on the stub GPU, at toy size."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.gpu_stub.stub import run_on_stub
from tests.patience import HANG

SCRIPT = Path(__file__).parents[2] / "experiments" / "speed" / "gpu.sh"


@pytest.mark.slow
@pytest.mark.timeout(4 * HANG)  # several libraries are compiled
def test_all_stages_run_to_their_end(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"OUT": str(tmp_path / "out"), "PATH": path}
    command = ["bash", str(SCRIPT), "--toy"]
    done = run_on_stub(command, cwd=tmp_path, env=environment, timeout=3 * HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(file.read_text()) for file in (tmp_path / "out" / "toy").glob("*.json")]
    assert len({each["stage"] for each in found}) == 10
    assert {each["state"] for each in found} == {"done"}
    assert {each["device"] for each in found} == {"cuda"}
    (peers,) = [each["result"] for each in found if each["part"].startswith("peers")]
    assert {row["precision"] for row in peers[0]["contenders"]} == {"bf16"}
    assert not [row for row in peers[0]["contenders"] if "skipped" in row]
