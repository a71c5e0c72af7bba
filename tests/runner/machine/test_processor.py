"""Kind and precision of processors that this machine does not have."""

import platform

import pytest
import torch

from tests.runner.machine.processors import (
    AVX2,
    AVX512,
    GRAVITON2,
    GRAVITON3,
    SAPPHIRE_RAPIDS,
    ZEN4,
    x86,
)
from vitcli.runner.machine import device
from vitcli.runner.machine.device import pick_precision
from vitcli.runner.machine.processor import (
    LIMITS,
    computes_bf16,
    cpu_kind,
    cpu_limits,
    prefers_bf16,
    this_processor,
)

LIMITED_BY_ATEN = x86("AVX2", onednn=True, bf16=True, amx=True)
LIMITED_BY_ONEDNN = x86("AVX512", onednn=False, bf16=True, amx=True)


@pytest.mark.parametrize(
    ("cpu", "computes", "prefers"),
    [
        (AVX2, False, False),
        (AVX512, False, False),
        (ZEN4, True, True),
        (SAPPHIRE_RAPIDS, True, True),
        (LIMITED_BY_ATEN, False, False),
        (LIMITED_BY_ONEDNN, False, False),
        (GRAVITON2, False, False),
        (GRAVITON3, True, False),
    ],
)
def test_where_bf16_is_computed_and_where_auto_takes_it(monkeypatch, cpu, computes, prefers):
    assert computes_bf16(cpu) is computes
    assert prefers_bf16(cpu) is prefers
    monkeypatch.setattr(device, "this_processor", lambda: cpu)
    assert pick_precision("auto", torch.device("cpu")) is (torch.bfloat16 if prefers else None)
    assert pick_precision("bf16", torch.device("cpu")) is torch.bfloat16, "who asks for it gets it"


def test_what_torch_reports_is_read(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    assert this_processor() == SAPPHIRE_RAPIDS
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert this_processor() == AVX2


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
