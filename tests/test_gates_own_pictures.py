"""Few photos suffice if the training starts from the bundled model (experiments/gates)."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from experiments.gates import own_pictures
from vitcli.cli.main import app
from vitcli.core.data.source import DataSet, Images
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.pictures import picture_size, quiet_pillow


def train(*options: str) -> str:
    """Type what README says about a folder called pictures; return all that it prints."""
    words = ["train", "finetune", "--data", "imagefolder:pictures", "--name", "pets", *options]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.data
def test_a_folder_of_120_photos_is_learned(here, real_places):
    own_pictures.write_pictures(Path("pictures"))
    assert "120 training images: 7 steps per epoch, 210 in all" in train()
    result = json.loads(Path("runs/pets/result.json").read_text())
    assert result["test_accuracy"] >= own_pictures.MIN_ACCURACY


def test_finetune_starts_from_the_bundled_model_whatever_the_classes(pictures):
    said = train("--epochs", "1", "--limit-batches", "1")
    assert "starting from cifar10-pocket with a new head (2 classes)" in said


def test_the_photos_have_many_sizes_and_unequal_classes(here, monkeypatch, draw_cifar):
    monkeypatch.setattr(own_pictures, "load_data", lambda *_, **__: draw_cifar)
    monkeypatch.setattr(own_pictures, "NUM_TRAIN", (3, 2, 1))
    monkeypatch.setattr(own_pictures, "NUM_TEST", 2)
    own_pictures.write_pictures(Path("pictures"))
    counts = [len([*Path("pictures/train", name).iterdir()]) for name in own_pictures.CLASSES]
    assert counts == [3, 2, 1]
    assert len([*Path("pictures/test").glob("*/*.jpg")]) == 6
    with quiet_pillow():
        sizes = {picture_size(path) for path in Path("pictures").rglob("*.jpg")}
    assert len(sizes) > 6
    assert all(200 <= side <= 300 for size in sizes for side in size)


@pytest.fixture
def draw_cifar():
    """A tiny data set with the names of CIFAR-10's classes, six test images each."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.arange(60) // 6)
    names = CATALOGUE["cifar10"].info.class_names
    half = (0.5, 0.5, 0.5)
    return DataSet(
        name="cifar10",
        class_names=names,
        train=images,
        test=images,
        mean=half,
        std=half,
        data_hash="",
    )
