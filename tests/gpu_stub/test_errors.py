"""A GPU that fails in a training, or is too small: one line and exit code 5."""

import sys

import pytest

from tests.gpu_stub.stub import ROOT, failing, pytest_on_stub, run_on_stub
from tests.patience import HANG

ILLEGAL_ADDRESS = 700


@pytest.mark.parametrize(
    ("broken", "advice"),
    [
        (failing("launch", ILLEGAL_ADDRESS, after=300), "--resume auto"),
        pytest.param({"STUB_GPU_GIB": "0.05"}, "out of memory", marks=pytest.mark.ci),
    ],
)
def test_a_training_on_a_broken_gpu_exits_with_5(tmp_path, broken, advice):
    command = [sys.executable, "-m", "vitcli", "train", "--device", "cuda", "--epochs", "2"]
    command += ["--limit-batches", "2", "-s", "train.compile=false", "--resume", "auto"]
    done = run_on_stub(command, cwd=tmp_path, env=broken, timeout=HANG)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert advice in done.stderr.splitlines()[-1]


@pytest.mark.ci
def test_the_stub_counts_and_refuses_as_cuda_does(tmp_path):
    """The control: without it, a stub that counts nothing would pass every other test."""
    assert "passed" in pytest_on_stub(f"{ROOT}/tests/gpu_stub/inside_stub.py", cwd=tmp_path)
