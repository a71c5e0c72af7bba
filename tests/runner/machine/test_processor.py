"""Processors, cores and limits of machines that are not this one."""

import os
import platform

import pytest
import torch

from tests.runner.machine import processors
from tests.runner.machine.processors import AVX2, AVX512, ZEN4, x86
from vitcli.runner.limits import cpu_quota, divide_cores, usable_cores
from vitcli.runner.machine import device
from vitcli.runner.machine.device import (
    computes_bf16,
    cpu_kind,
    pick_precision,
    warn_if_emulated,
)


@pytest.mark.parametrize(
    ("cpu", "computes", "prefers"),
    [
        (AVX512, False, False),
        (ZEN4, True, True),
        (processors.SAPPHIRE_RAPIDS, True, True),
        (x86("AVX2", onednn=True, bf16=True, amx=True), False, False),  # limited by ATen
        (x86("AVX512", onednn=False, bf16=True, amx=True), False, False),  # limited by oneDNN
        (processors.GRAVITON2, False, False),
        (processors.GRAVITON3, True, False),
    ],
)
def test_where_bf16_is_computed_and_where_auto_takes_it(monkeypatch, cpu, computes, prefers):
    assert computes_bf16(cpu) is computes
    monkeypatch.setattr(device, "this_processor", lambda: cpu)
    assert pick_precision("auto", torch.device("cpu")) is (torch.bfloat16 if prefers else None)
    assert pick_precision("bf16", torch.device("cpu")) is torch.bfloat16, "who asks for it gets it"


@pytest.mark.parametrize(
    ("system", "machine", "capability", "has_tiles", "kind"),
    [
        ("Linux", "x86_64", "AVX512", True, "amx"),
        ("Linux", "x86_64", "AVX512", False, "avx512"),
        ("Linux", "x86_64", "AVX2", True, "avx2"),  # ATEN_CPU_CAPABILITY=avx2 on a CPU with AMX
        ("Linux", "x86_64", "DEFAULT", True, "other"),
        ("Darwin", "x86_64", "AVX512", True, "avx512"),
        ("Linux", "aarch64", "SVE256", False, "neon"),
        ("Darwin", "arm64", "DEFAULT", False, "neon"),
    ],
)
def test_kind(monkeypatch, system, machine, capability, has_tiles, kind):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles, raising=False)
    assert cpu_kind() == kind


@pytest.mark.parametrize(
    ("files", "group", "quota"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 0.5),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/\n", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/\n", None),
    ],
)
def test_the_quota_of_control_groups(tmp_path, files, group, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(group)
    assert cpu_quota(tmp_path, tmp_path / "own") == quota


@pytest.mark.parametrize(
    ("usable", "count", "threads", "divided"),
    [
        ({3, 5, 8, 9}, 2, 1, [[3, 5], [8, 9]]),  # a container may use only these
        ({0, 1, 2, 3}, 2, 2, [[0, 1], [2, 3]]),
        ({0, 1, 2, 3, 4}, 2, 1, [[0, 1], [2, 3]]),
        ({0, 1}, 1, 2, [[]]),  # one worker uses all cores
        ({0, 1, 2}, 2, 2, [[], []]),  # fewer cores than threads
    ],
)
def test_each_worker_has_cores_of_its_own(monkeypatch, usable, count, threads, divided):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    assert divide_cores(count, threads) == divided
    least = min(usable_cores(quota) for quota in (0.5, 1.7))
    assert (usable_cores(None), usable_cores(99), least) == (len(usable), len(usable), 1)


@pytest.mark.parametrize(
    ("cpu", "precision", "is_told"),
    [(AVX2, "bf16", True), (AVX2, "auto", False), (ZEN4, "bf16", False)],
)
def test_asking_for_emulated_bf16_warns(monkeypatch, cpu, precision, is_told):
    monkeypatch.setattr(device, "this_processor", lambda: cpu)
    said: list[str] = []
    warn_if_emulated(precision, "cpu", said.append)
    assert len(said) == is_told
