"""The task fusion: batches that are functions of seed, epoch and image, and what is measured."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import BASE
from tests.core.trainings import HALF, data_set
from vitcli.core.data.batches import IMAGES_AT_ONCE
from vitcli.core.data.keys import content_keys
from vitcli.core.data.mel import NUM_SAMPLES, spectrograms, unit_rms
from vitcli.core.data.source import DataSet
from vitcli.core.generated import sound as sounds
from vitcli.core.objectives.fusion.fusion import Fusion
from vitcli.core.objectives.fusion.spec import FusionSpec
from vitcli.core.objectives.pictures import Heat
from vitcli.core.spec import (
    AugmentSpec,
    DataSpec,
    ExperimentSpec,
    SwinSpec,
    TrainSpec,
)

NOISY = {"image_noise": 0.5, "sound_noise": 2.0}


def task_of(augment: dict[str, Any] | None = None, seed: int = 0, **fields: Any) -> Fusion:
    options: dict[str, Any] = {"sound_patch_size": 16, "fusion": "late"} | fields
    name = "imagefolder:mine" if options.get("sound") == "folder" else "scenes"
    spec = ExperimentSpec(
        model=BASE,
        data=DataSpec(name=name, mean=HALF, std=HALF, augment=AugmentSpec(**(augment or {}))),
        train=TrainSpec(batch_size=16, epochs=2),
        task=FusionSpec(**options),
        seed=seed,
    )
    return Fusion(spec, Fusion.make_module(spec))


def epoch_of(task: Fusion, data: DataSet, epoch: int = 0) -> dict[str, torch.Tensor]:
    """All batches of an epoch in one, in the order of the data set."""
    batches = list(task.batches(data, epoch))
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    order = task.rows(data, epoch)["index"].argsort()
    return {name: values[order] for name, values in whole.items()}


def test_sounds_and_noise_are_functions_of_seed_epoch_and_image():
    data = data_set()
    first, again = (epoch_of(task_of(**NOISY), data) for _ in range(2))
    assert all(first[name].equal(again[name]) for name in first)
    later, other = epoch_of(task_of(**NOISY), data, 1), epoch_of(task_of(seed=1, **NOISY), data)
    for changed in (later, other):
        assert (first["sounds"] != changed["sounds"]).flatten(1).any(1).all()
        assert (first["images"] != changed["images"]).flatten(1).any(1).all()
    clean, next_clean = (epoch_of(task_of(), data, epoch) for epoch in (0, 1))
    assert_close(clean["sounds"], next_clean["sounds"])
    some = replace(data, train=data.train[torch.arange(63, -1, -1)])
    reversed_ = epoch_of(task_of(**NOISY), some)
    assert_close(reversed_["sounds"].flip(0), first["sounds"], rtol=0, atol=1e-4)


def test_an_evaluation_hears_the_same_in_any_order_and_other_speakers(monkeypatch):
    data, task = data_set(), task_of(**NOISY)
    (batch,), order = task.eval_batches(data.test), torch.randperm(64)
    monkeypatch.setitem(IMAGES_AT_ONCE, "cpu", 20)
    parts = list(task.eval_batches(data.test[order]))
    assert [len(part["images"]) for part in parts] == [20, 20, 20, 4]
    moved = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    monkeypatch.undo()
    assert_close(moved["sounds"], batch["sounds"][order], rtol=0, atol=1e-4)
    assert moved["images"].equal(batch["images"][order])
    heard: list[bool] = []

    def note(*args: Any, held_out: bool) -> torch.Tensor:
        heard.append(held_out)
        return sounds.synthesize(*args, held_out=held_out)

    monkeypatch.setattr("vitcli.core.objectives.fusion.fusion.synthesize", note)
    list(task.batches(data, 0))
    assert heard == [False] * 4
    list(task.eval_batches(data.test))
    assert heard[4:] == [True]


def test_mixing_mixes_sounds_by_the_share_of_the_label():
    data = data_set()
    task, plain = task_of({"mixup": 1.0, "mix_prob": 1.0}), task_of()
    mixed, single = next(task.batches(data, 0)), next(plain.batches(data, 0))
    own = task.rows(data, 0)["own"][:16]
    index = task.rows(data, 0)["index"][:16]
    keys = content_keys(data.train.pixels[index])
    waves = plain._waves(data.train, index, keys, held_out=False)
    assert_close(spectrograms(waves), single["sounds"])
    share = own[:, None]
    wanted = spectrograms(share * waves + (1 - share) * waves.roll(1, 0))
    assert_close(mixed["sounds"], wanted, rtol=0, atol=1e-3)
    places = torch.arange(16)
    assert (mixed["targets"][places, single["targets"]] >= own - 1e-6).all()


def test_shuffled_sounds_say_nothing_about_the_class(monkeypatch):
    classes: list[torch.Tensor] = []

    def note(keys: torch.Tensor, labels: torch.Tensor, *_: Any, held_out: bool) -> torch.Tensor:
        classes.append(labels)
        return torch.zeros(len(keys), NUM_SAMPLES)

    monkeypatch.setattr("vitcli.core.objectives.fusion.fusion.synthesize", note)
    data = data_set(640)
    for shuffled, agreeing in ((False, (1.0, 1.0)), (True, (0.1, 0.3))):
        classes.clear()
        batches = list(task_of(shuffle_sounds=shuffled).batches(data, 0))
        targets = torch.cat([batch["targets"] for batch in batches])
        share = (torch.cat(classes) == targets).float().mean()
        assert agreeing[0] <= share <= agreeing[1]


def test_sounds_of_files_follow_their_images():
    data = data_set()
    waves = torch.randint(-9999, 9999, (64, NUM_SAMPLES), dtype=torch.int16)
    heard = replace(data, train=replace(data.train, extra={"sound": waves}))
    task = task_of(sound="folder")
    assert_close(epoch_of(task, heard)["sounds"], spectrograms(unit_rms(waves.float())))
    task.check_data(heard)
    with pytest.raises(ValueError, match=r"task\.sound: random has no sounds; add NAME\.wav"):
        task.check_data(data)


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({}, (0, 0)),
        ({"modality_dropout": 0.25}, (2, 2)),
        ({"modality_dropout": 0.99}, (7, 7)),
        ({"modalities": "image"}, (16, 0)),
        ({"modalities": "sound"}, (0, 16)),
    ],
    ids=str,
)
def test_modality_dropout_takes_a_fixed_part_of_each_batch(fields, alone):
    task = task_of(**fields)
    assert task.alone(16) == alone
    task.losses(next(task.batches(data_set(), 0)))["loss"].backward()
    trained = {
        name: any(p.grad is not None and bool(p.grad.any()) for p in part.parameters())
        for name, part in (("image", task.module.image), ("sound", task.module.sound))
    }
    assert trained == {"image": alone != (0, 16), "sound": alone != (16, 0)}


def test_losses_of_single_modalities_are_added_with_their_weight():
    data = data_set()
    plain, weighted = (task_of(unimodal=w, modality_dropout=0.25) for w in (1.0, 3.0))
    weighted.module.load_state_dict(plain.module.state_dict())
    batch = next(plain.batches(data, 0))
    found = plain.module(batch["images"], batch["sounds"], (2, 2))
    losses = [
        torch.nn.functional.cross_entropy(found[name], batch["targets"][rows])
        for name, rows in (("image_logits", slice(2, 16)), ("sound_logits", slice(0, 14)))
    ]
    difference = weighted.losses(batch)["loss"] - plain.losses(batch)["loss"]
    assert_close(difference, 2 * sum(losses))


def test_it_measures_each_modality_alone():
    data, task = data_set(), task_of(contrast=0.1)
    outputs = task.outputs(task.module, data.test)
    assert {name: tuple(v.shape) for name, v in outputs.items()} == {
        "labels": (64,),
        "logits": (64, 5),
        "image_logits": (64, 5),
        "sound_logits": (64, 5),
        "image": (64, 64),
        "sound": (64, 64),
    }
    assert_close(outputs["logits"], outputs["image_logits"] + outputs["sound_logits"])
    measured = task.measure(outputs)
    assert {*task.spec.task.row.numbers, "retrieval"} <= measured.keys()
    alone = task_of(modalities="sound")
    outputs = alone.outputs(alone.module, data.test)
    assert outputs["logits"].equal(outputs["sound_logits"])
    flipped = task.outputs(task.module, data.test, flip=True)
    assert_close(flipped["logits"].exp().sum(1), torch.ones(64))


def test_its_pictures_show_what_the_evaluation_hears():
    data, task = data_set(), task_of(**NOISY)
    found = task.pictures(task.module, data, torch.tensor([5, 3]))
    assert found["images"].cells.shape == (1, 2, 3, 16, 16)
    heat = found["sounds"]
    assert isinstance(heat, Heat)
    (batch,) = task.eval_batches(data.test)
    assert_close(heat.cells[0], batch["sounds"][[5, 3], 0].flip(1), rtol=0, atol=1e-4)
    assert heat.columns == tuple("abcde"[data.test.labels[i]] for i in (5, 3))


@pytest.mark.parametrize(
    ("task", "other", "message"),
    [
        ({}, {"model": BASE.replace(pos_embed="rope2d")}, "task.fusion: pos_embed 'rope2d' needs"),
        ({"contrast": 0.1}, {}, "task.contrast: 'early' has no separate features"),
        ({"unimodal": 1.0}, {}, "task.unimodal: 'early' has no separate features"),
        ({"sound": "folder"}, {}, "task.sound: shapes has no sounds"),
        ({"modality_dropout": 0.01}, {}, "task.modality_dropout: 0.01 of a batch of 64 images"),
        (
            {"fusion": "late", "contrast": 0.1, "modalities": "image"},
            {},
            "task.contrast: needs both",
        ),
        (
            {"fusion": "late"},
            {"model": SwinSpec(pool="mean", depths=(1,), pos_embed="relative")},
            "model.family: task 'fusion' needs family 'vit', not 'swin'",
        ),
    ],
    ids=str,
)
def test_what_it_does_not_support_is_refused(task, other, message):
    with pytest.raises(ValueError, match=message):
        ExperimentSpec(task=FusionSpec(**task), train=TrainSpec(batch_size=64), **other)
