"""Fusion of images and sounds: batches, models, and what a missing modality changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.core.specs import BASE, noisy
from tests.core.trainings import data_set, new_task
from vitcli.core.data.batches import IMAGES_AT_ONCE
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.fusion import sounds
from vitcli.plugins.fusion.fusion import CrossAttention, Fusion, FusionModel, retrieval
from vitcli.plugins.fusion.sounds import NUM_SAMPLES, SHAPE, content_keys, spectrograms, unit_rms
from vitcli.plugins.fusion.spec import FUSIONS, FusionSpec


def test_it_equals_torchs_multihead_attention():
    layer = CrossAttention(12, 3).double()
    tokens, others = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    parts = [layer.query, layer.key, layer.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(layer.proj.state_dict())
    assert_close(layer(tokens, others), theirs(tokens, others, others)[0])


IMAGES = torch.randn(6, 3, 16, 16).double()
SOUNDS = torch.randn(6, 1, *SHAPE).double()


def build(fusion: str, task: dict[str, Any] | None = None, **model: Any) -> FusionModel:
    fields = FusionSpec(fusion=fusion, sound_patch_size=8, **(task or {}))
    spec = ExperimentSpec(model=BASE.replace(**model), task=fields)
    return noisy(Fusion.make_module(spec).double().eval())


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_batch_has_sounds_then_pairs_then_images(fusion, pool):
    model = build(fusion, pool=pool)
    found = model(IMAGES, SOUNDS, (2, 1))["logits"]
    pairs = model(IMAGES[1:4], SOUNDS[1:4])["logits"]
    image, sound = model(IMAGES, SOUNDS, (6, 0))["logits"], model(IMAGES, SOUNDS, (0, 6))["logits"]
    assert_close(found, torch.cat([sound[:1], pairs, image[4:]]))
    assert_close(image, model.image(IMAGES))
    assert not torch.allclose(found[1:4], image[1:4])
    assert not torch.allclose(found[1:4], sound[1:4])


@pytest.mark.parametrize("fields", [{}, {"reg_tokens": 2, "pos_embed_prefix": True}], ids=str)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_sound_alone_does_not_depend_on_the_image(fusion, fields):
    model = build(fusion, **fields)
    one, other = (model(x, SOUNDS, (0, 6))["logits"] for x in (IMAGES, -IMAGES))
    assert_close(one, other)
    assert not torch.allclose(one, model(IMAGES, -SOUNDS, (0, 6))["logits"])


def test_late_fusion_is_a_linear_head_on_both_features():
    model = build("late")
    features = torch.cat([model.image.features(IMAGES), model.sound.features(SOUNDS)], dim=1)
    weight = torch.cat([model.image.head.weight, model.sound.head.weight], dim=1)
    wanted = features @ weight.mT + model.image.head.bias + model.sound.head.bias
    assert_close(model(IMAGES, SOUNDS)["logits"], wanted)


@pytest.mark.parametrize("alone", [(2, 1), (4, 2)])
@pytest.mark.parametrize("fusion", ["late", "cross"])
def test_the_logits_of_single_modalities_are_those_without_the_other(fusion, alone):
    model = build(fusion, {"unimodal": 1.0})
    found = model(IMAGES, SOUNDS, alone)
    image, sound = (model(IMAGES, SOUNDS, each)["logits"] for each in ((6, 0), (0, 6)))
    assert_close(found["image_logits"], image[alone[1] :])
    assert_close(found["sound_logits"], sound[: 6 - alone[0]])
    assert build(fusion)(IMAGES, SOUNDS).keys() == {"logits"}


def test_the_contrastive_loss_is_small_for_matching_pairs():
    model = build("late", {"contrast": 1.0})
    own = torch.eye(6, 64).double()
    with torch.no_grad():
        model.joint.log_temperature.fill_(0.07).log_()
    assert model.joint.loss(own, own) < 1e-4
    assert model.joint.loss(own, own.roll(1, 0)) > 10
    both, pairs = model(IMAGES, SOUNDS, (2, 1)), model(IMAGES[1:4], SOUNDS[1:4])
    for name in ("image", "sound"):
        assert_close(both[name], pairs[name])
    assert_close(both["image"].norm(dim=1), torch.ones(3))


NOISY = {"image_noise": 0.5, "sound_noise": 2.0}


def task_of(augment: dict[str, Any] | None = None, **fields: Any) -> Fusion:
    task = {"name": "fusion", "sound_patch_size": 16, "fusion": "late"} | fields
    name = "imagefolder:mine" if task.get("sound") == "folder" else "scenes"
    made = new_task({"task": task, "augment": augment or {}, "data": {"name": name}})
    assert isinstance(made, Fusion)
    return made


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

    monkeypatch.setattr("vitcli.plugins.fusion.fusion.synthesize", note)
    list(task.batches(data, 0))
    assert heard == [False] * 4
    list(task.eval_batches(data.test))
    assert heard[4:] == [True]


def test_mixing_mixes_sounds_by_the_share_of_the_label():
    data = data_set()
    task, plain = task_of({"mixup": 1.0, "mix_prob": 1.0}), task_of()
    mixed, single = next(task.batches(data, 0)), next(plain.batches(data, 0))
    rows = task.rows(data, 0)
    own, index = rows["own"][:16], rows["index"][:16]
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

    monkeypatch.setattr("vitcli.plugins.fusion.fusion.synthesize", note)
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
    found = torch.cat([batch["sounds"] for batch in task.batches(heard, 0)])
    index = task.rows(heard, 0)["index"]
    assert_close(found, spectrograms(unit_rms(waves.float()))[index])


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


def test_retrieval_is_the_share_of_nearest_sounds_of_the_same_class():
    places, labels = torch.eye(4, 64), torch.tensor([0, 1, 0, 1])
    assert retrieval(places, places, labels) == 1
    assert retrieval(places, places.roll(2, 0), labels) == 1, "another sound of the class is right"
    assert retrieval(places, places.roll(1, 0), labels) == 0
