"""Whole trainings on the stub GPU: a GPU that fails or is too small, and measure.sh."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import draw_pictures
from tests.gpu_stub.stub import ROOT, failing, run_on_stub
from tests.patience import HANG

ILLEGAL_ADDRESS = 700


@pytest.mark.parametrize(
    ("broken", "advice"),
    [
        (failing("launch", ILLEGAL_ADDRESS, after=200), "--resume auto"),
        pytest.param({"STUB_GPU_GIB": "0.05"}, "out of memory", marks=pytest.mark.ci),
    ],
)
def test_a_training_on_a_broken_gpu_exits_with_5(tmp_path, broken, advice):
    command = [sys.executable, "-m", "vitcli", "train", "--device", "cuda", "--epochs", "2"]
    command += ["--limit-batches", "2", "-s", "train.compile=false", "--resume", "auto"]
    command += ["-s", "model.depth=1", "--data", f"imagefolder:{draw_pictures(tmp_path)}"]
    done = run_on_stub(command, cwd=tmp_path, env=broken, timeout=HANG)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert advice in done.stderr.splitlines()[-1]


GPU_TESTS = ROOT / "tests" / "runner" / "machine" / "test_gpu.py"
READ_VALUES = {
    "test_every_precision_learns": "the loss must fall",
    "test_augmentation_gives_the_pixels_of_the_cpu": "pixels are compared",
    "test_a_captured_step_draws_what_it_draws_eagerly": "random numbers are compared",
}
"""Test that reads values of the device -> which. The stub computes none."""


@pytest.mark.ci
def test_the_tests_of_a_gpu_pass_as_far_as_values_do_not_matter(tmp_path):
    left_out = [f"--deselect={GPU_TESTS.relative_to(ROOT)}::{name}" for name in READ_VALUES]
    words = ["-q", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml", "-m", "gpu", *left_out]
    command = [sys.executable, "-m", "pytest", *words, str(GPU_TESTS)]
    done = run_on_stub(command, cwd=tmp_path, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu" / "measure.sh"


@pytest.mark.slow
@pytest.mark.timeout(4 * HANG)  # several libraries are compiled
def test_all_stages_run_to_their_end(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": path}
    command = ["bash", str(SCRIPT), "--toy", "--out", str(tmp_path / "out")]
    done = run_on_stub(command, cwd=tmp_path, env=environment, timeout=3 * HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(file.read_text()) for file in (tmp_path / "out" / "toy").glob("*.json")]
    assert len({each["stage"] for each in found}) == 10
    assert {each["state"] for each in found} == {"done"}
    assert {each["device"] for each in found} == {"cuda"}
    (peers,) = [each["result"] for each in found if each["part"].startswith("peers")]
    assert {row["precision"] for row in peers[0]["contenders"]} == {"bf16"}
    assert not [row for row in peers[0]["contenders"] if "skipped" in row]
