"""The kind of a CPU, for processors that this machine does not have."""

import platform

import pytest
import torch

from vitcli.runner.machine.processor import LIMITS, cpu_kind, cpu_limits


@pytest.mark.parametrize(
    ("system", "machine", "capability", "has_tiles", "kind"),
    [
        ("Linux", "x86_64", "AVX512", True, "amx"),
        ("Linux", "x86_64", "AVX512", False, "avx512"),
        ("Linux", "x86_64", "AVX2", False, "avx2"),
        ("Linux", "x86_64", "AVX2", True, "avx2"),  # ATEN_CPU_CAPABILITY=avx2 on a CPU with AMX
        ("Linux", "x86_64", "DEFAULT", True, "other"),
        ("Darwin", "x86_64", "AVX512", True, "avx512"),
        ("Linux", "aarch64", "DEFAULT", False, "neon"),
        ("Linux", "aarch64", "SVE256", False, "neon"),
        ("Darwin", "arm64", "DEFAULT", False, "neon"),
        ("Linux", "ppc64le", "VSX", False, "other"),
    ],
)
def test_kind(monkeypatch, system, machine, capability, has_tiles, kind):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles, raising=False)
    assert cpu_kind() == kind


def test_variables_that_limit_the_processor_are_named(monkeypatch):
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    assert cpu_limits() == ""
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert cpu_limits() == "ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2"
