"""Whole trainings on the stub GPU, and the tests of a real GPU as far as values do not matter."""

import sys

import pytest

from tests.gpu_stub.stub import ROOT, pytest_on_stub, run_on_stub
from tests.patience import HANG

GPU_TESTS = ROOT / "tests" / "runner" / "machine" / "test_gpu.py"
READ_VALUES = {
    "test_every_precision_learns": "the loss must fall",
    "test_augmentation_gives_the_pixels_of_the_cpu": "pixels are compared",
    "test_a_captured_step_draws_what_it_draws_eagerly": "random numbers are compared",
    "test_the_model_computes_what_it_computes_on_a_cpu": "outputs are compared",
}
"""Test that reads values of the device -> which. The stub computes none."""


@pytest.mark.ci
def test_the_tests_of_a_gpu_pass_as_far_as_values_do_not_matter(tmp_path):
    left_out = [f"--deselect={GPU_TESTS.relative_to(ROOT)}::{name}" for name in READ_VALUES]
    words = ["-m", "gpu", *left_out, str(GPU_TESTS)]
    printed = pytest_on_stub(*words, cwd=tmp_path)
    assert "skipped" not in printed
    assert int(printed.partition(" passed")[0].split()[-1]) > 0


@pytest.mark.ci
def test_a_compiled_training_runs_to_its_end(tmp_path):
    """Triton compiles every kernel to machine code for an H100."""
    command = [sys.executable, "-m", "vitcli", "train", "quickstart", "--device", "cuda"]
    command += ["--limit-batches", "4", "--epochs", "1"]
    done = run_on_stub(command, cwd=tmp_path, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stderr
    assert list((tmp_path / "runs").rglob("result.json"))
