"""Settings of CUDA's arithmetic hold in their block only. No test here needs a GPU."""

import os

import pytest
import torch

from vitcli.runner.errors import ConfigError
from vitcli.runner.machine import arithmetic as module
from vitcli.runner.machine.arithmetic import arithmetic, chosen_kernels, forbid_tf32
from vitcli.runner.machine.device import name_precision, pick_precision

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


def test_tf32_is_computed_in_its_block_only(before):
    forbid_tf32()
    with arithmetic("tf32"):
        assert settings()["products"] == "high"
        assert settings()["convolutions"] is True
    assert settings() == before | {"products": "highest", "convolutions": False}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_other_precision_implies_tf32(precision, before):
    forbid_tf32()
    with arithmetic(precision):
        assert settings() == before | {"products": "highest", "convolutions": False}


def test_kernels_are_deterministic_in_their_block_only():
    with chosen_kernels(CUDA, deterministic=True):
        found = settings()
        assert found["deterministic"] is found["cudnn deterministic"] is True
        assert found["cudnn benchmark"] is found["fills"] is False
        assert found["cublas"] == ":4096:8"


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_cpu_has_no_such_settings(deterministic, before):
    with chosen_kernels(CPU, deterministic):
        assert settings() == before


def test_an_operation_without_a_deterministic_kernel_is_named(before):
    index, values = torch.tensor([0]), torch.tensor([1.0])
    with (
        pytest.raises(ConfigError, match=r"train\.deterministic: put_ does not have") as caught,
        chosen_kernels(CUDA, deterministic=True),
    ):
        torch.zeros(3).put_(index, values)
    assert "\n" not in str(caught.value)
    assert "type -s train.deterministic=false" in str(caught.value)
    with pytest.raises(RuntimeError, match="another"), chosen_kernels(CUDA, deterministic=True):
        raise RuntimeError("another")


@pytest.mark.parametrize("name", ["tf32", "fp16"])
def test_a_precision_of_gpus_is_refused_elsewhere(name):
    with pytest.raises(ConfigError, match=f"precision {name} needs a CUDA device, not cpu; type"):
        name_precision(name, CPU)


def test_tf32_is_refused_on_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    with pytest.raises(ConfigError, match="V100 does not compute in it; type --precision fp32"):
        name_precision("tf32", CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert name_precision("tf32", CUDA) == "tf32"
    assert pick_precision("tf32", CUDA) is None, "tensors stay fp32"
