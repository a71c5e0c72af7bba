"""What a device is taken to be able to do."""

import pytest
import torch

from vitcli.runner.machine.device import has_bf16


@pytest.mark.parametrize(
    ("capability", "computes"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)]
)
def test_a_cpu_that_is_held_below_avx512_does_not_compute_in_bf16(
    monkeypatch, capability, computes
):
    """With ``ATEN_CPU_CAPABILITY=avx2`` torch emulates bf16, far slower than fp32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert has_bf16(torch.device("cpu")) is computes
