"""Fusion models: what a missing modality changes, and how both are joined."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import BASE
from vitcli.core.data.mel import SHAPE
from vitcli.core.objectives.fusion.model import FusionModel, LateFusion, build_fusion
from vitcli.core.objectives.fusion.spec import FUSIONS, FusionSpec
from vitcli.core.spec import ExperimentSpec

IMAGES = torch.randn(6, 3, 16, 16).double()
SOUNDS = torch.randn(6, 1, *SHAPE).double()


def build(
    fusion: str, *, contrast: float = 0.0, unimodal: float = 0.0, **model: Any
) -> FusionModel:
    """A float64 model in eval mode, with noise on all weights."""
    task = FusionSpec(fusion=fusion, sound_patch_size=8, contrast=contrast, unimodal=unimodal)
    found = build_fusion(ExperimentSpec(model=BASE.replace(**model), task=task)).double().eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return found


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_batch_has_sounds_then_pairs_then_images(fusion, pool):
    model = build(fusion, pool=pool)
    found = model(IMAGES, SOUNDS, (2, 1))["logits"]
    pairs = model(IMAGES[1:4], SOUNDS[1:4])["logits"]
    image, sound = model(IMAGES, SOUNDS, (6, 0))["logits"], model(IMAGES, SOUNDS, (0, 6))["logits"]
    assert_close(found, torch.cat([sound[:1], pairs, image[4:]]))
    assert not torch.allclose(found[1:4], image[1:4])
    assert not torch.allclose(found[1:4], sound[1:4])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_image_alone_is_classified_by_the_encoder(fusion):
    model = build(fusion)
    assert_close(model(IMAGES, SOUNDS, (6, 0))["logits"], model.image(IMAGES))


@pytest.mark.parametrize("fields", [{}, {"reg_tokens": 2, "pos_embed_prefix": True}], ids=str)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_sound_alone_does_not_depend_on_the_image(fusion, fields):
    model = build(fusion, **fields)
    one, other = (model(x, SOUNDS, (0, 6))["logits"] for x in (IMAGES, -IMAGES))
    assert_close(one, other)
    assert not torch.allclose(one, model(IMAGES, -SOUNDS, (0, 6))["logits"])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_parameter_is_trained_by_pairs(fusion):
    model = build(fusion, contrast=0.0 if fusion == "early" else 0.1)
    found = model(IMAGES, SOUNDS)
    sum(values.sin().sum() for values in found.values()).backward()
    still = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert still <= {"joint.log_temperature"}, "the loss applies the temperature"


def test_late_fusion_is_a_linear_head_on_both_features():
    model = build("late")
    features = torch.cat([model.image.features(IMAGES), model.sound.features(SOUNDS)], dim=1)
    weight = torch.cat([model.image.head.weight, model.sound.head.weight], dim=1)
    wanted = features @ weight.mT + model.image.head.bias + model.sound.head.bias
    assert_close(model(IMAGES, SOUNDS)["logits"], wanted)


def test_both_encoders_of_late_fusion_start_from_different_weights():
    task = FusionSpec(fusion="late", sound_patch_size=8)
    model = build_fusion(ExperimentSpec(model=BASE, task=task, seed=3))
    again = build_fusion(ExperimentSpec(model=BASE, task=task, seed=3))
    names = [name for name, p in model.image.blocks.named_parameters() if p.ndim == 2]
    image, sound = (
        dict(model.image.blocks.named_parameters()),
        dict(model.sound.blocks.named_parameters()),
    )
    assert not any(torch.allclose(image[name], sound[name]) for name in names)
    assert all(a.equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("alone", [(2, 1), (4, 2)])
@pytest.mark.parametrize("fusion", ["late", "cross"])
def test_the_logits_of_single_modalities_are_those_without_the_other(fusion, alone):
    model = build(fusion, unimodal=1.0)
    found = model(IMAGES, SOUNDS, alone)
    image, sound = (model(IMAGES, SOUNDS, each)["logits"] for each in ((6, 0), (0, 6)))
    assert_close(found["image_logits"], image[alone[1] :])
    assert_close(found["sound_logits"], sound[: 6 - alone[0]])
    assert build(fusion)(IMAGES, SOUNDS).keys() == {"logits"}


def test_the_contrastive_loss_is_small_for_matching_pairs():
    model = build("late", contrast=1.0)
    assert isinstance(model, LateFusion)
    assert model.joint is not None
    own = torch.eye(6, 64).double()
    with torch.no_grad():
        model.joint.log_temperature.fill_(0.07).log_()
    assert model.joint.loss(own, own) < 1e-4
    assert model.joint.loss(own, own.roll(1, 0)) > 10
    both, pairs = model(IMAGES, SOUNDS, (2, 1)), model(IMAGES[1:4], SOUNDS[1:4])
    for name in ("image", "sound"):
        assert_close(both[name], pairs[name])
    assert_close(both["image"].norm(dim=1), torch.ones(3))
