"""The Python interface, beyond the examples in README."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitcli
from tests.cli import commands
from vitcli.core.data.source import DataSet, Images


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(vitcli.UserError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_is_built_by_the_name_of_an_experiment_or_from_fields():
    fields = {"embed_dim": 400, "depth": 6, "num_heads": 8, "mlp_dim": 512}
    model = vitcli.build_model(img_size=32, patch_size=4, pos_embed="sincos2d", **fields)
    assert sum(p.numel() for p in model.parameters()) == 6_347_082
    other = vitcli.build_model("cifar10-small")
    assert [p.shape for p in other.parameters()] == [p.shape for p in model.parameters()]


def test_fit_learns(pictures):
    data = vitcli.load_data(f"imagefolder:{pictures}")
    model = vitcli.build_model(**SMALL)
    epochs = list(vitcli.fit(model, data, epochs=3, batch_size=16))
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert epochs[-1]["test_accuracy"] > 0.9
    maps = vitcli.attention_maps(model, data.normalize(data.test.pixels[:2]), [0])
    assert torch.allclose(maps[0].sum(-1), torch.ones(2, 2, 5))


@pytest.fixture
def mine() -> DataSet:
    pixels = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    pixels[:, 2] = 7
    images = Images(pixels, torch.arange(40) % 2)
    facts: dict[str, Any] = {"name": "mine", "class_names": ("a", "b"), "data_hash": ""}
    facts |= {"mean": (0.5, 0.5, 7 / 255), "std": (0.25, 0.25, 0.0)}
    return DataSet(train=images, test=images, **facts)


SIZES = {"embed_dim": 16, "depth": 1, "num_heads": 2}
SMALL: dict[str, Any] = SIZES | {"img_size": 8, "num_classes": 2}
FIT: dict[str, Any] = {"epochs": 1, "batch_size": 16}


def test_a_mistake_is_one_line(here):
    assert "'quickstar'" in refusal(vitcli.build_model, experiment="quickstar")
    assert "'cifar'" in refusal(vitcli.load_data, name="cifar")
    assert "load_data: unknown field 'data.resiz'" in refusal(vitcli.load_data, resiz=3)
    for load in (vitcli.load_run, vitcli.load_model):
        assert "'nope'" in refusal(load, "nope")


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"num_classes": 3}, {}, "num_classes=3"),
        ({"img_size": 16}, {}, r"img_size=\(16, 16\)"),
        ({}, {"epochs": -1}, "train.epochs"),
        ({}, {"optim": {"rate": 1.0}}, "unknown field 'optim.rate'"),
        ({}, {"optim": {"ema": 0.9}}, "unknown field 'optim.ema'$"),
        ({}, {"batch_size": 41}, "batch_size"),
    ],
)
def test_a_mistake_in_fit_is_found_before_the_first_epoch(mine, fields, options, message):
    model = vitcli.build_model(**(SMALL | fields))
    assert re.search(message, refusal(vitcli.fit, model, mine, **FIT | options))


class Linear(torch.nn.Module):
    def __init__(self, classes: int = 2):
        super().__init__()
        self.layer = torch.nn.Linear(192, classes)

    def forward(self, images):
        return self.layer(images.flatten(1))


class Changed(Linear):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, images):
        return self.change(super().forward(images))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Linear(3), r"fit: .*Linear must return logits of the shape \(2, 2\), returned \(2, 3\)"),
        (torch.nn.Linear(7, 2), "fit: images of 3x8x8 .* cannot be multiplied"),
        (torch.nn.Flatten(), "fit: Flatten has no parameter"),
        (vitcli.build_model(**SMALL).requires_grad_(False), "^fit: .*parameter"),
        ("vit", "^fit: str is no Module; take build_model"),
        (Changed(lambda logits: logits.detach().numpy()), r"\(2, 2\), returned ndarray"),
        (Changed(lambda logits: logits.detach()), "Changed returns logits without a gradient"),
        (Changed(lambda logits: logits.long()), "Changed returns logits without a gradient"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_fit_says_what_a_module_must_return(mine, model, message):
    found = refusal(vitcli.fit, model, mine, **FIT)
    assert re.search(message, found)
    assert "batch_size" not in found, "the batch is not too large"


@pytest.mark.parametrize("change", [lambda logits: logits.softmax(1), lambda logits: logits])
def test_fit_says_that_probabilities_are_no_logits(mine, change):
    notes: list[str] = []
    vitcli.fit(Changed(change), mine, **FIT, on_message=notes.append)
    is_changed = change(torch.ones(1, 2)).sum() == 1
    assert ["returns probabilities" in note for note in notes] == [True] * bool(is_changed)


@pytest.mark.parametrize("data", ["scenes", [(1, 2)], None])
def test_fit_takes_no_other_data(data):
    assert "is no DataSet; take load_data" in refusal(vitcli.fit, Linear(), data, **FIT)


def test_attention_maps_are_those_of_a_model_of_vitcli(mine):
    with pytest.raises(ValueError, match="Linear is no model of vitcli"):
        vitcli.attention_maps(Linear(), mine.normalize(mine.test.pixels))
    model = vitcli.build_model(**SMALL)
    with pytest.raises(ValueError, match="layer 7 is out of range"):
        vitcli.attention_maps(model, mine.normalize(mine.test.pixels[:3]), [7])


def test_fit_makes_a_run_that_commands_take(pictures, mine, capsys):
    data = vitcli.load_data(f"imagefolder:{pictures}", val_split=10)
    model = vitcli.build_model(**SMALL)
    first, last = vitcli.fit(model, data, epochs=2, batch_size=16, save="runs/x")
    assert first.keys() == {"epoch", "train_loss", "val_accuracy"}
    run = vitcli.load_run("x")
    assert run.state == "finished"
    assert run.result["test_accuracy"] == last["test_accuracy"]
    images = data.normalize(data.test.pixels)
    with torch.no_grad():
        assert torch.equal(vitcli.load_model("x")(images), model(images))
        predicted = torch.from_numpy(run.predictions[0])
        torch.testing.assert_close(
            vitcli.load_model(run.path)(images), predicted, atol=1e-3, rtol=1e-3
        )
    assert commands.vitcli("eval", "x", "--min-accuracy", last["test_accuracy"])[0] == 0
    assert not run.result["exact"], "its initial weights are not those of its seed"
    for folder in ("runs/x", "runs/x/result.json"):
        with pytest.raises(vitcli.UserError, match=f"{folder} is not empty"):
            next(vitcli.fit(model, data, **FIT, save=folder))
    with pytest.raises(vitcli.UserError, match=r"@vitcli\.parts\.model"):
        next(vitcli.fit(Linear(), mine, **FIT, save="runs/y"))
    capsys.readouterr()
    model.grad_checkpointing = True
    (epoch,) = vitcli.fit(model, mine, **FIT, save="runs/z")
    assert model.grad_checkpointing, "the mode of a model is kept"
    assert math.isfinite(epoch["train_loss"]), "also with a channel of one level"
    vitcli.load_model("z")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "head", torch.nn.Sequential(torch.nn.Linear(16, 2))),
        lambda model: setattr(model.blocks[0].ffn.inner, "act", torch.nn.Tanh()),
        lambda model: setattr(model.pos_drop, "p", 0.5),
        lambda model: setattr(model, "forward", lambda x: 2 * type(model).forward(model, x)),
        lambda model: model.head.register_forward_hook(lambda part, inputs, out: out + 0),
        lambda model: model.blocks.requires_grad_(False),
    ],
    ids=["head", "activation", "dropout", "forward", "hook", "frozen"],
)
def test_fit_does_not_save_a_model_that_was_changed(here, mine, change):
    model = vitcli.build_model(**SMALL)
    change(model)
    message = "save needs the model as build_model made it"
    assert message in refusal(next, vitcli.fit(model, mine, **FIT, save="runs/x"))
    assert not Path("runs/x").exists()
    next(vitcli.fit(model, mine, **FIT))


def test_a_run_with_folds_has_the_seed_of_its_images(pictures):
    data = vitcli.load_data(f"imagefolder:{pictures}", folds=2, seed=1)
    model, given = vitcli.build_model(**SMALL), {"epochs": 1, "batch_size": 8, "save": "runs/x"}
    with pytest.raises(vitcli.UserError, match=r"images of seed 1; .*: fit\(seed=1\)"):
        next(vitcli.fit(model, data, **given))
    (last,) = vitcli.fit(model, data, seed=1, **given)
    assert commands.vitcli("eval", "x", "--min-accuracy", last["test_accuracy"])[0] == 0


def test_arrays_are_a_data_set(pictures):
    data = vitcli.load_data(f"imagefolder:{pictures}")
    splits = [
        (part.pixels.permute(0, 2, 3, 1).numpy(), part.labels.numpy())
        for part in (data.train, data.test)
    ]
    same = vitcli.data_set(*splits, class_names=["bright", "dark"])
    assert same.data_hash == data.data_hash
    assert (same.class_names, same.mean, same.std) == (("bright", "dark"), data.mean, data.std)
    for kind in (str, int):  # as pandas stores a column
        labels = [np.array([*map(kind, y)], object) for _, y in splits]
        column = vitcli.data_set(*zip((x for x, _ in splits), labels, strict=True))
        assert column.data_hash == data.data_hash
    mixed = np.array(["a", 1] * 40, object)[: len(splits[0][1])]
    assert "train_labels is object" in refusal(vitcli.data_set, (splits[0][0], mixed), splits[1])
    grey = vitcli.data_set(*[(torch.tensor(x[..., 0]), y) for x, y in splits])
    assert (grey.in_chans, grey.num_classes, grey.val) == (1, 2, None)
    assert refusal(vitcli.data_set, splits[0], (splits[1][0], [5] * 24)).startswith("data_set: ")
    said = list[str]()
    vitcli.data_set(*splits, class_names=np.array(["dark", "Dark"]), on_message=said.append)
    assert "'dark' and 'Dark' look like one name" in said.pop()
    dark = np.random.default_rng(0).integers(0, 4096, (20, 8, 8)).astype("u2")  # 12 bits
    labels = np.arange(20) % 2
    vitcli.data_set((dark, labels), (dark[:3], labels[:3]), on_message=said.append)
    assert "leaves few of 256 levels; scale them: (images * (255 / 4095)).round()" in said[0]
    assert said[1:] == ["note: 3 test images found in train, too; the test accuracy is too high"]
    dark[1:] *= 16
    vitcli.data_set((dark, labels), (dark[1:] + 1, labels[1:]), on_message=said.append)
    assert "nearly black: 1 of 39 pictures" in said[2]
    assert said[2].endswith("black to white; give all images one unit")


def test_the_curve_of_a_run_of_arrays_is_that_of_their_validation_images(here, mine):
    part = mine.test.pixels, mine.test.labels
    data = vitcli.data_set(part, part, part)
    assert len([*vitcli.fit(vitcli.build_model(**SMALL), data, **FIT, save="runs/x")]) == 1
    run = vitcli.load_run("x")
    assert run.curve == ((1, run.result["val_accuracy"]),)
    assert run.setting("data.val_split") == run.num_val == 40


def test_fit_refuses_pictures_on_both_sides(pictures):
    copied = pictures / "test" / "dark" / "copy.png"
    copied.write_bytes(next((pictures / "train" / "dark").iterdir()).read_bytes())
    model, name = vitcli.build_model(**SMALL), f"imagefolder:{pictures}"
    with pytest.raises(
        vitcli.UserError, match=r"fit: 1 held-out picture .*\n.*\n.*allow_leaks=True"
    ):
        vitcli.fit(model, vitcli.load_data(name), **FIT)
    vitcli.fit(model, vitcli.load_data(name, allow_leaks=True), **FIT)


def test_fit_prepares_its_device_as_a_training_does(mine, monkeypatch):
    """On CUDA, ``pick_device`` forbids TF32."""

    def pick(name: str) -> None:
        raise vitcli.UserError(name)

    monkeypatch.setattr("vitcli.api.pick_device", pick)
    assert refusal(vitcli.fit, vitcli.build_model(**SMALL), mine, **FIT) == "cpu"


def test_a_training_that_diverges_raises(mine):
    model = vitcli.build_model(**SMALL)
    torch.nn.init.constant_(model.head.weight, float("inf"))
    with pytest.raises(vitcli.UserError, match="fit: diverged in epoch 1"):
        next(vitcli.fit(model, mine, **FIT))


def test_pixels_that_are_not_normalised_are_refused(mine):
    model = vitcli.build_model(**SMALL)
    for function in (model, partial(vitcli.attention_maps, model)):
        with pytest.raises(ValueError, match="normalised images, got uint8"):
            function(mine.test.pixels)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"PK"), Path.unlink])
def test_missing_and_damaged_predictions_are_named(copy_of_run, damage):
    run = vitcli.load_run(copy_of_run("mine"))
    damage(run.path / "predictions.npz")
    with pytest.raises(vitcli.UserError, match=r"mine/predictions\.npz: "):
        _ = run.predictions
