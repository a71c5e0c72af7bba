"""Errors of a GPU, its driver and its libraries: exit code 5, one line, and the run continues."""

import pytest
import torch
from typer.testing import CliRunner

from tests.same_run import assert_same_run
from vitcli.cli.main import app
from vitcli.core.train.training import Training
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.machine.resources import as_resource_error
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
LOST = "an illegal memory access was encountered"


def gpu_error(text: str) -> RuntimeError:
    return torch.AcceleratorError(f"CUDA error: {text}{ADVICE}")


FAILURES = {
    gpu_error(LOST): f"CUDA error: {LOST}; nvidia-smi shows its state; try again",
    RuntimeError(f"CUDA error: {LOST}{ADVICE}"): "nvidia-smi shows its state",
    gpu_error("unspecified launch failure"): "unspecified launch failure; nvidia-smi",
    gpu_error("no kernel image is available for execution on the device"): "install a torch that",
    gpu_error("out of memory"): "out of memory; try -s train.accumulate=2",
    gpu_error("CUDA driver version is insufficient for CUDA runtime version"): "update NVIDIA's",
    RuntimeError(
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU"
        " driver by downloading and installing a new version."
    ): "too old (found version 11040); update NVIDIA's driver",
    RuntimeError("No CUDA GPUs are available"): "No CUDA GPUs are available; nvidia-smi lists",
    RuntimeError(
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`"
    ): "CUBLAS_STATUS_EXECUTION_FAILED",
    RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ): "out of memory",
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"): "CUDNN_STATUS_INTERNAL_ERROR",
    RuntimeError("Triton Error [CUDA]: device kernel image is invalid"): "Triton Error",
}


@pytest.mark.parametrize(("error", "message"), FAILURES.items(), ids=str)
def test_a_failed_gpu_is_one_line_that_says_what_to_type(error, message):
    found = as_resource_error(error)
    assert found is not None
    assert found.exit_code == 5
    assert message in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        gpu_error("device-side assert triggered"),
        OSError(2, "No such file or directory"),
    ],
    ids=str,
)
def test_a_bug_stays_a_bug(error):
    assert as_resource_error(error) is None


def fail_at(monkeypatch, step: int, error: Exception) -> None:
    plain = Training.run_epoch

    def run_epoch(self, epoch):
        for done in plain(self, epoch):
            if done.step == step:
                raise error
            yield done

    monkeypatch.setattr(Training, "run_epoch", run_epoch)


def test_a_training_continues_after_its_gpu_failed(tiny, here, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, 8, gpu_error(LOST))
        done = CliRunner().invoke(app, ["train", str(tiny), "-o", "run", "--device", "cpu"])
    assert done.exit_code == 5
    assert f"error: the GPU cannot be used: CUDA error: {LOST}; nvidia-smi" in done.stderr
    assert "Traceback" not in done.stderr
    assert RunDir(here / "run").status()["state"] != "failed"
    request = Request(output=here / "run", resume=True, device="cpu")
    resumed = start(load_experiment(str(tiny)), request)
    calm = start(load_experiment(str(tiny)), Request(output=here / "calm", device="cpu"))
    assert_same_run(calm.run, resumed.run)
