"""A training on images and sounds: resumed to the same bits, measured, and looked into."""

import json
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.cli.main import app
from vitcli.core.objectives.fusion.spec import FUSIONS
from vitcli.runner.errors import StoppedError
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.start import Request, start

FUSE = {
    "task.name": "fusion",
    "task.sound_patch_size": 16,
    "task.modality_dropout": 0.3,
    "task.image_noise": 0.5,
    "task.sound_noise": 1.0,
}


@pytest.mark.parametrize("fusion", FUSIONS)
def test_it_resumes_to_the_same_bits(tiny, monkeypatch, fusion):
    contrast = 0.0 if fusion == "early" else 0.1
    parts = 1 if contrast else 2
    changes = FUSE | {"task.fusion": fusion, "task.contrast": contrast, "train.accumulate": parts}
    experiment = load_experiment(str(tiny), changes)
    calm = start(experiment, Request(output=Path("calm")))
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(StoppedError):
            start(experiment, Request(output=Path("stopped")))
    start(experiment, Request(output=Path("stopped"), resume=True))
    numbers = ("test_accuracy", "test_image_accuracy", "test_sound_accuracy")
    assert_same_run(calm.run, RunDir(Path("stopped")), measures=numbers)


@pytest.mark.parametrize("modality", ["image", "sound"])
def test_a_baseline_of_one_modality_leaves_the_other_encoder_as_it_was(tiny, modality):
    changes = FUSE | {"task.fusion": "late", "task.modalities": modality, "optim.name": "muon"}
    done = start(load_experiment(str(tiny), changes), Request(output=Path("run")))
    assert done.result["test_accuracy"] == done.result[f"test_{modality}_accuracy"]


def vitcli(command: str) -> str:
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_is_estimated_measured_verified_and_looked_into(tiny):
    options = " ".join(f"-s {name}={value}" for name, value in FUSE.items())
    estimate = json.loads(vitcli(f"train {tiny} {options} --dry-run --json --device cpu"))
    vitcli(f"train {tiny} {options} -o run")
    assert estimate["parameters"] == json.loads(Path("run/result.json").read_text())["parameters"]
    result = json.loads(Path("run/result.json").read_text())
    found = json.loads(vitcli("eval run --json"))
    for name in ("test_accuracy", "test_image_accuracy", "test_sound_accuracy"):
        assert found[name] == pytest.approx(result[name], abs=1e-6)
    assert "damaged" not in vitcli("runs verify run")
    Image.new("RGB", (20, 20), "teal").save("photo.png")
    vitcli("attn-map photo.png --run run --method rollout -o map.png")
    refused = CliRunner().invoke(app, ["predict", "photo.png", "--run", "run"])
    assert refused.exit_code == 2
    assert "its task 'fusion' has no classes" in refused.output
