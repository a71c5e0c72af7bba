"""What the operating system says about the cores: how many, how fast, and how many are ours."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.control_groups import GROUPS, PROCESS_GROUP, control_groups


def allowed_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def divide_cores(count: int, threads: int) -> list[list[int]]:
    """Return for each of ``count`` workers the cores to pin it to.

    The lists are empty if workers cannot or need not be pinned: on other systems than Linux, for a
    single worker, and if there are fewer cores than threads.
    """
    cores = allowed_cores()
    each = len(cores) // count
    if not hasattr(os, "sched_setaffinity") or count == 1 or each < threads:
        return [[] for _ in range(count)]
    return [cores[i * each : (i + 1) * each] for i in range(count)]


CPU_INFO = Path("/proc/cpuinfo")
MAX_KHZ = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The cores of a machine; what is unknown is empty or None."""

    vendor: str = ""
    family: int = 0
    model: int = 0
    flags: frozenset[str] = frozenset()
    physical: int | None = None
    """Number of cores without their second hardware threads."""
    hertz: float | None = None
    """The highest clock that the system reports."""

    @property
    def is_amd(self) -> bool:
        return self.vendor == "AuthenticAMD"


def read_cores() -> Cores:
    """Return the cores of this machine."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        text = ""
    try:
        hertz = 1e3 * int(MAX_KHZ.read_text())
    except (OSError, ValueError):
        hertz = None
    return parse_cores(text, hertz)


def parse_cores(text: str, hertz: float | None = None) -> Cores:
    """Return the cores in the text of ``/proc/cpuinfo``.

    Args:
        text: The text; empty if unknown.
        hertz: The highest clock if the system reports it elsewhere.
    """
    blocks = [_parse_block(block) for block in text.strip().split("\n\n")]
    first = blocks[0]
    places = {(b.get("physical id"), b["core id"]) for b in blocks if "core id" in b}
    clocks = [1e6 * float(mhz) for mhz in re.findall(r"^cpu MHz\s*: ([\d.]+)$", text, re.MULTILINE)]
    return Cores(
        vendor=first.get("vendor_id", ""),
        family=_number(first.get("cpu family", "")),
        model=_number(first.get("model", "")),
        flags=frozenset(first.get("flags", "").split()),
        physical=len(places) or None,
        hertz=hertz or max(clocks, default=None),
    )


def _parse_block(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def fp32_per_cycle(cores: Cores) -> int | None:
    """Return the fp32 FLOP that a core can do per cycle; None if the processor is not known.

    A fused multiply-add of a vector of 8 is 16 FLOP.
    """
    flags = cores.flags
    if not {"avx2", "fma"} <= flags:
        return None
    if cores.is_amd and cores.family in (23, 25):  # Zen 1 to 4; Zen 4 halves 512-bit vectors
        is_first = cores.family == 23 and cores.model < 0x30  # halves 256-bit vectors
        return 16 if is_first else 32
    if cores.vendor != "GenuineIntel":
        return None
    if "amx_tile" in flags:
        return 64
    # AVX-512 without AMX has one or two units; AVX-VNNI without AVX-512 may be a small core.
    return None if flags & {"avx512f", "avx_vnni"} else 32


def fp32_peak(cores: Cores) -> float | None:
    """Return the fp32 FLOP/s that one core can reach in theory; None if unknown."""
    per_cycle = fp32_per_cycle(cores)
    return per_cycle * cores.hertz if per_cycle and cores.hertz else None


def cpu_quota(groups: Path = GROUPS, process_group: Path = PROCESS_GROUP) -> float | None:
    """Return the number of cores that control groups allow this process; None without a limit."""
    limits = [_read(folder / "cpu.max") for folder in control_groups(groups, process_group)]
    version1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    limits.append(" ".join(_read(groups / "cpu" / name) for name in version1))
    pairs = [limit.split() for limit in limits]
    shares = [int(p[0]) / int(p[1]) for p in pairs if len(p) == 2 and p[0].isdecimal()]
    return min(shares, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def usable_cores(quota: float | None) -> int:
    """Return the number of cores that this process may use, at least 1."""
    return max(1, min(len(allowed_cores()), int(quota or 2**20)))


def load_average() -> float | None:
    """Return the mean number of running processes in the last minute; None if unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
