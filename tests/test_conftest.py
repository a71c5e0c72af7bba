"""The summary of skipped tests."""

from types import SimpleNamespace

from tests.conftest import skipped_by_reason


def test_skipped_tests_are_counted_by_reason():
    amx, gpu = "Skipped: native kernels: this CPU has no AMX", "Skipped: no CUDA device here"
    reports = [SimpleNamespace(longrepr=("f.py", 1, reason)) for reason in (gpu, amx, amx)]
    assert skipped_by_reason(reports) == [
        "not tested here: 2 tests (native kernels: this CPU has no AMX)",
        "not tested here: 1 test (no CUDA device here)",
    ]
