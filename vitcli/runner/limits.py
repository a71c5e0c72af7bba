"""The cores and the memory that Linux allows this process: its affinity and control groups."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

PROCESS_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def control_groups(groups: Path = GROUPS, process_group: Path = PROCESS_GROUP) -> list[Path]:
    """Return the folders of the control groups (version 2) of this process, the innermost first."""
    lines = _read(process_group).splitlines()
    group = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folders = [groups / group, *(groups / group).parents]
    return folders[: folders.index(groups) + 1]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


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
    share = len(cores) // count
    if not hasattr(os, "sched_setaffinity") or count == 1 or share < threads:
        return [[] for _ in range(count)]
    return [cores[i * share : (i + 1) * share] for i in range(count)]


def cpu_quota(groups: Path = GROUPS, process_group: Path = PROCESS_GROUP) -> float | None:
    limits = [_read(folder / "cpu.max") for folder in control_groups(groups, process_group)]
    version1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    limits.append(" ".join(_read(groups / "cpu" / name) for name in version1))
    pairs = [limit.split() for limit in limits]
    shares = [int(p[0]) / int(p[1]) for p in pairs if len(p) == 2 and p[0].isdecimal()]
    return min(shares, default=None)


def usable_cores(quota: float | None) -> int:
    return max(1, min(len(allowed_cores()), int(quota or 2**20)))


def available_memory(groups: Sequence[Path] | None = None) -> int | None:
    """Return the free bytes of memory within the control groups; None if unknown."""
    limits = [
        int(line.split()[1]) * 1024
        for line in _read(Path("/proc/meminfo")).splitlines()
        if line.startswith("MemAvailable:")
    ]
    for group in control_groups() if groups is None else groups:
        with contextlib.suppress(OSError, ValueError):  # no such limit
            most = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            limits.append(most - used + int(facts.get("inactive_file", 0)))  # cache that is freed
    return min(limits, default=None)
