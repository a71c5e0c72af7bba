"""Peak, cores and limits, read from texts of other machines."""

import pytest

from tests.runner.machine.processors import cpu_info
from vitcli.runner.machine import cores
from vitcli.runner.machine.cores import cpu_quota, fp32_peak, parse_cores, usable_cores

AMD = {"vendor_id": "AuthenticAMD", "cpu family": 25}


@pytest.mark.parametrize(
    ("fields", "flags", "per_cycle"),
    [
        (AMD | {"cpu family": 23, "model": 1}, "avx2 fma", 16),  # Zen 1
        (AMD | {"cpu family": 23, "model": 49}, "avx2 fma", 32),  # Zen 2
        (AMD | {"model": 1}, "avx2 fma", 32),  # Zen 3
        (AMD | {"model": 17}, "avx2 fma avx512f avx512_bf16", 32),  # Zen 4
        (AMD | {"cpu family": 26}, "avx2 fma avx512f", None),  # Zen 5: full or halved vectors
        ({}, "avx2 fma", 32),  # Haswell
        ({}, "avx2 fma avx512f", None),  # Skylake: one or two units
        ({}, "avx2 fma avx_vnni", None),  # Alder Lake: large or small cores
        ({}, "avx2 fma avx512f avx_vnni amx_tile", 64),  # Sapphire Rapids
        ({}, "avx", None),
        ({"vendor_id": "CentaurHauls"}, "avx2 fma", None),
    ],
)
def test_the_peak_is_computed_where_the_processor_is_known(fields, flags, per_cycle):
    found = parse_cores(cpu_info(2, flags=flags, **fields))
    assert fp32_peak(found) == (per_cycle and per_cycle * 2.5e9)


def test_second_threads_of_a_core_and_the_clock():
    found = parse_cores(cpu_info(4, 2), hertz=4e9)
    assert (found.physical, found.hertz) == (4, 4e9)
    assert parse_cores(cpu_info(4)).hertz == 2.5e9


def test_a_system_without_cpuinfo(tmp_path, monkeypatch):
    for name in ("CPU_INFO", "MAX_KHZ"):
        monkeypatch.setattr(cores, name, tmp_path / "absent")
    found = cores.read_cores()
    assert (found.physical, found.hertz, fp32_peak(found), found.is_amd) == (None,) * 3 + (False,)


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


def test_usable_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert [usable_cores(quota) for quota in (None, 0.5, 2.7, 8)] == [4, 1, 2, 4]
