"""A GPU that fails in a training: one line, exit code 5, and the run continues."""

import sys

from tests.gpu_stub.stub import failing, run_on_stub
from tests.patience import HANG

ILLEGAL_ADDRESS = 700


def test_a_training_continues_after_an_illegal_access(tmp_path):
    command = [sys.executable, "-m", "vitcli", "train", "--device", "cuda", "--epochs", "2"]
    command += ["--limit-batches", "2", "-s", "train.compile=false", "--resume", "auto"]
    broken = failing("launch", ILLEGAL_ADDRESS, after=300)
    done = run_on_stub(command, cwd=tmp_path, env=broken, timeout=HANG)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: the GPU cannot be used: CUDA error: ")
    assert "--resume auto" in last
    again = run_on_stub(command, cwd=tmp_path, timeout=HANG)
    assert again.returncode == 0, again.stderr
