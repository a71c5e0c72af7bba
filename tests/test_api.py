"""The Python interface, beyond the examples in README."""

import math
import subprocess
import sys

import torch

import vitcli
from vitcli.cli.main import app
from vitcli.core.data.source import DataSet, Images


def test_importing_the_package_does_not_import_torch():
    code = "import sys, vitcli; assert vitcli.__version__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_attribute_errors():
    assert not hasattr(vitcli, "build_modle")


def test_one_line_builds_the_model_of_cifar10_small():
    model = vitcli.build_model(
        img_size=32, patch_size=4, num_classes=10, embed_dim=400, depth=6, num_heads=8,
        mlp_dim=512, pos_embed="sincos2d",
    )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == 6_347_082
    other = vitcli.build_model("cifar10-small")
    assert [p.shape for p in other.parameters()] == [p.shape for p in model.parameters()]


def test_a_model_of_another_family_is_built_the_same_way():
    model = vitcli.build_model("cifar10-resnet18", num_classes=2)
    other = vitcli.build_model(family="resnet18", num_classes=2)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962 - 8 * 513
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_fit_learns_and_a_run_can_be_loaded(tiny, pictures):
    data = vitcli.load_data(f"imagefolder:{pictures}")
    model = vitcli.build_model(img_size=8, num_classes=2, embed_dim=16, depth=1, num_heads=2)
    epochs = list(vitcli.fit(model, data, epochs=3, batch_size=16))
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert epochs[-1]["test_accuracy"] > 0.9

    from typer.testing import CliRunner

    assert (
        CliRunner().invoke(app, ["train", str(tiny), "-o", "run", "--epochs", "1"]).exit_code == 0
    )
    loaded = vitcli.load_model("run")
    logits = loaded(data.normalize(data.test.pixels))
    assert logits.shape == (24, 2)
    assert not loaded.training
    maps = vitcli.attention_maps(loaded, data.normalize(data.test.pixels[:2]), [1])
    assert torch.allclose(maps[1].sum(-1), torch.ones(2, 2, 4))


def test_an_experiments_model_is_the_one_that_is_trained():
    model = vitcli.build_model("cifar10-tiny")
    assert model.spec.img_size == (64, 64)
    assert sum(p.numel() for p in model.parameters()) == 140_618


def test_fit_takes_images_of_any_origin():
    """A data set that no catalogue has, with a channel of one level."""
    pixels = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    pixels[:, 2] = 7
    images = Images(pixels, torch.arange(40) % 2)
    data = DataSet(
        name="mine",
        class_names=("a", "b"),
        train=images,
        test=images,
        mean=(0.5, 0.5, 7 / 255),
        std=(0.25, 0.25, 0.0),
        data_hash="",
    )
    model = vitcli.build_model(img_size=8, num_classes=2, embed_dim=16, depth=1, num_heads=2)
    (epoch,) = vitcli.fit(model, data, epochs=1, batch_size=16)
    assert math.isfinite(epoch["train_loss"])
