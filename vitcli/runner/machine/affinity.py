"""The CPU cores that this process may use, and their division among workers. No torch."""

import os


def allowed_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
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
