"""The stub GPU: it builds, and it behaves as CUDA does where tests rely on it."""

import shutil
import sys

import pytest
import torch

from tests.gpu_stub import stub
from tests.gpu_stub.stub import failing, pytest_on_stub, run_on_stub
from tests.patience import HANG

SUM = "import torch; print(torch.ones(2**28, device='cuda').sum().item())"


def test_it_behaves_as_cuda_does(tmp_path):
    assert "passed" in pytest_on_stub(f"{stub.ROOT}/tests/gpu_stub/inside_stub.py", cwd=tmp_path)


def test_the_memory_has_the_size_that_was_asked_for(tmp_path):
    small = run_on_stub(SUM, cwd=tmp_path, env={"STUB_GPU_GIB": "0.5"}, timeout=HANG)
    assert "OutOfMemoryError" in small.stderr
    assert small.returncode == 1
    large = run_on_stub(SUM, cwd=tmp_path, env={"STUB_GPU_GIB": "2"}, timeout=HANG)
    assert (large.returncode, large.stdout) == (0, "0.0\n")


def test_after_an_error_of_the_device_every_call_fails(tmp_path):
    code = """
import torch
for _ in range(2):
    try:
        torch.ones(3, device="cuda")
    except RuntimeError as error:
        print(str(error).partition("\\n")[0])
"""
    done = run_on_stub(code, cwd=tmp_path, env=failing("launch", 700), timeout=HANG)
    assert done.stdout.count("an illegal memory access was encountered") == 2


def test_a_training_that_needs_too_much_memory_exits_with_5(tmp_path):
    command = [sys.executable, "-m", "vitcli", "train", "--device", "cuda", "--limit-batches", "2"]
    command += ["-s", "train.compile=false"]
    done = run_on_stub(command, cwd=tmp_path, env={"STUB_GPU_GIB": "0.05"}, timeout=HANG)
    assert done.returncode == 5, done.stderr
    assert "out of memory" in done.stderr


def test_a_machine_that_cannot_build_it_says_why(monkeypatch):
    assert stub.why_not() == ""
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)
        assert stub.why_not() == "torch is built without CUDA"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert stub.why_not() == "no gcc and no nm"


def test_other_calls_of_torch_are_answered():
    code = stub.rest({"cublasSgemm_v2", "cudaIpcOpenMemHandle", "cudnnCreateRNNDescriptor"})
    lines = code.splitlines()[2:]
    assert lines == [
        "COMPUTE(cublasSgemm_v2, CUBLAS_FAILED)",
        "ANSWER(cudaIpcOpenMemHandle)",
        "CREATE(cudnnCreateRNNDescriptor)",
    ]


@pytest.mark.parametrize("name", ["cudaMalloc", "cuLaunchKernel", "cublasCreate_v2"])
def test_names_that_torch_needs_are_found(name):
    assert name in stub.needed_names()
