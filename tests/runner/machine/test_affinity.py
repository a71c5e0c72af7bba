"""The division of CPU cores among workers, for numbers of cores that this machine does not have."""

import os

import pytest

from vitcli.runner.machine.affinity import allowed_cores, divide_cores


@pytest.mark.parametrize(
    ("usable", "count", "threads", "cores"),
    [
        ({0, 1}, 2, 1, [[0], [1]]),
        ({3, 5, 8, 9}, 2, 1, [[3, 5], [8, 9]]),  # a container may use only these
        ({0, 1, 2, 3}, 2, 2, [[0, 1], [2, 3]]),
        ({0, 1, 2, 3, 4}, 2, 1, [[0, 1], [2, 3]]),
        ({0, 1}, 1, 2, [[]]),  # one worker uses all cores
        ({0, 1}, 4, 1, [[], [], [], []]),  # fewer cores than threads
        ({0, 1, 2}, 2, 2, [[], []]),
    ],
)
def test_each_worker_has_cores_of_its_own(monkeypatch, usable, count, threads, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    assert divide_cores(count, threads) == cores


def test_without_linux_nothing_is_pinned(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert allowed_cores() == [0, 1, 2, 3]
    assert divide_cores(2, 1) == [[], []]
