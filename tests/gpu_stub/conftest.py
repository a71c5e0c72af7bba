"""Build the stub GPU once for all workers of a test session."""

import os

import pytest

from tests.gpu_stub import stub


@pytest.fixture(autouse=True, scope="session")
def _stub(tmp_path_factory) -> None:
    if reason := stub.why_not():
        pytest.skip(f"the stub GPU: {reason}")
    base = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    stub.folder = (base.parent if is_worker else base) / "gpu-stub"
