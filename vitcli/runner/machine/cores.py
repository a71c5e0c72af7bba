"""Which cores of the machine are ours."""

import os
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
