"""Settings of CUDA's arithmetic, and errors of a GPU. No test here needs a GPU."""

import errno
import os

import pytest
import torch

from tests.cli.commands import said
from tests.runner.train.conftest import train
from tests.same_run import assert_same_run
from vitcli.core.objectives.classify import Classify
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.machine import device as module
from vitcli.runner.machine.device import (
    arithmetic,
    chosen_kernels,
    name_precision,
    pick_precision,
    set_cuda_defaults,
)
from vitcli.runner.machine.resources import SMALLER, as_resource_error, resource_errors
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def settings() -> dict[str, object]:
    return {
        "products": torch.get_float32_matmul_precision(),
        "convolutions": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn deterministic": torch.backends.cudnn.deterministic,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "fills": getattr(module.filling, "fill_uninitialized_memory"),  # noqa: B009
        "cublas": os.environ.get(module.CUBLAS_VARIABLE),
    }


@pytest.fixture(autouse=True)
def before(monkeypatch):
    """The settings that must hold again after each test."""
    monkeypatch.delenv(module.CUBLAS_VARIABLE, raising=False)
    found = settings()
    yield found
    forbidden = found | {"products": "highest", "convolutions": False}
    assert settings() in (found, forbidden)
    torch.backends.cudnn.allow_tf32 = found["convolutions"]


@pytest.mark.parametrize("precision", ["tf32", "fp32", "bf16", "fp16"])
def test_tf32_is_computed_in_its_block_only_and_implied_by_no_other_precision(precision, before):
    has_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    set_cuda_defaults()
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "attention on CUDA never takes cuDNN"
    torch.backends.cuda.enable_cudnn_sdp(has_cudnn)
    forbidden = before | {"products": "highest", "convolutions": False}
    allowed = before | {"products": "high", "convolutions": True}
    with arithmetic(precision):
        assert settings() == (allowed if precision == "tf32" else forbidden)
    assert settings() == forbidden


def test_kernels_are_deterministic_in_their_block_only_and_an_operation_without_one_is_named():
    with chosen_kernels(CUDA, deterministic=True):
        found = settings()
        assert found["deterministic"] is found["cudnn deterministic"] is True
        assert found["cudnn benchmark"] is found["fills"] is False
        assert found["cublas"] == ":4096:8"
    index, values = torch.tensor([0]), torch.tensor([1.0])
    with (
        pytest.raises(ConfigError, match=r"train\.deterministic: put_ does not have") as caught,
        chosen_kernels(CUDA, deterministic=True),
    ):
        torch.zeros(3).put_(index, values)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="another"), chosen_kernels(CUDA, deterministic=True):
        raise RuntimeError("another")


def test_tf32_is_refused_on_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.raises(ConfigError, match="V100 does not compute in it; take fp32"):
        name_precision("tf32", CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert name_precision("tf32", CUDA) == "tf32"
    assert pick_precision("tf32", CUDA) is None, "tensors stay fp32"


ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
LOST = "an illegal memory access was encountered"


def gpu_error(text: str) -> RuntimeError:
    return torch.AcceleratorError(f"CUDA error: {text}{ADVICE}")


FAILURES = {
    gpu_error(LOST): f"CUDA error: {LOST}; nvidia-smi shows its state; try again",
    gpu_error("no kernel image is available for execution on the device"): "install a torch that",
    gpu_error("out of memory"): "out of memory; close other programs",
    gpu_error("CUDA driver version is insufficient for CUDA runtime version"): "update NVIDIA's",
    RuntimeError("The NVIDIA driver is too old (11040). Please update"): "(11040); update NVIDIA's",
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling a library"): "out of memory",
}


@pytest.mark.parametrize(("error", "message"), FAILURES.items(), ids=str)
def test_a_failed_gpu_is_one_line_that_says_what_to_type(error, message):
    found = as_resource_error(error)
    assert found.exit_code == 5
    assert message in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (MemoryError(), "train.accumulate"),
        (OSError(errno.EFBIG, "File too large", "a.npz"), "a.npz: larger than"),
        (OSError(errno.ENOSPC, "No space left", "a.npz"), "disk full while writing a.npz"),
        (OSError(errno.EDQUOT, "Quota exceeded", "a.npz"), "quota used up while writing a.npz"),
        (OSError(errno.ENOLCK, "No locks", "a.lock"), "a.lock: the file system gives no lock"),
        (OSError(errno.ESTALE, "Stale handle", "a.npz"), "a.npz: the network file system"),
        (OSError(errno.EBUSY, "Busy", "a.npz"), "a.npz: the file system is busy"),
    ],
    ids=str,
)
def test_a_training_without_a_resource_says_what_helps_there(error, advice):
    with pytest.raises(ResourceError, match=advice), resource_errors(SMALLER):
        raise error
    with pytest.raises(ResourceError) as caught, resource_errors():
        raise error
    assert "train." not in str(caught.value), "a table and a reader of images train nothing"


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


def test_a_training_continues_after_its_gpu_failed(tiny, here, monkeypatch, copy_of_run):
    taken: list[object] = []

    def fail_at_the_eighth_step(task):
        taken.append(task)
        if len(taken) == 8:
            raise gpu_error(LOST)

    with monkeypatch.context() as patch:
        patch.setattr(Classify, "after_step", fail_at_the_eighth_step)
        talk = said(5, "train", tiny, "-o", "run", "--device", "cpu")
    assert f"error: the GPU cannot be used: CUDA error: {LOST}; nvidia-smi" in talk
    assert read_record(RunDir(here / "run")).status != "failed"
    resumed = train(tiny, "run", resume=True, device="cpu")
    assert_same_run(RunDir(copy_of_run(here / "calm")), resumed.folder)
