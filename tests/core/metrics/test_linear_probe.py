"""The linear probe is the optimum of its objective, and only training images choose anything."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitcli.core.metrics.linear_probe import (
    DEFAULT_STRENGTH,
    fit_layers,
    held_out,
    linear_probe,
)


def draw(count: int = 300, classes: int = 4, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return features (M, 6) around a mean for each class, and unequal classes (M,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(count, generator=generator).pow(1.5).mul(classes).long()
    means = torch.randn(classes, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return means[labels] + spread * noise, labels


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-4])
def test_the_gradient_of_the_objective_is_zero(strength):
    features, labels = draw()
    (layer,) = fit_layers(features, labels, 4, [strength])
    weight, bias = layer[:-1].clone().requires_grad_(), layer[-1].clone().requires_grad_()
    loss = F.cross_entropy(features @ weight + bias, labels)
    (loss + strength / 2 * weight.square().sum()).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert weight.grad.abs().max() < 2e-5
    assert bias.grad.abs().max() < 2e-5


def test_a_strong_penalty_leaves_the_shares_of_the_classes():
    """The bias is not penalised."""
    features, labels = draw()
    features = features - features.mean(0)
    (layer,) = fit_layers(features, labels, 4, [1e4])
    shares = torch.bincount(labels).double() / len(labels)
    assert_close(layer[-1].softmax(0), shares, atol=1e-3, rtol=0)
    assert layer[:-1].abs().max() < 1e-3


def test_every_fifth_image_of_each_class_is_held_out():
    labels = torch.tensor([0] * 11 + [1] * 5 + [0] * 4 + [3] * 6)
    out = held_out(labels)
    assert [int(out[labels == label].sum()) for label in (0, 1, 3)] == [3, 1, 1]
    assert not held_out(torch.tensor([0] * 10 + [1] * 4)).any(), "a class has too few images"


def test_useless_features_have_a_strong_penalty_and_useful_ones_a_weak_one():
    generator = torch.Generator().manual_seed(1)
    features, labels = draw(600, spread=0.3)
    noise = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    useful = linear_probe(features[:400], labels[:400], features[400:], 4)
    useless = linear_probe(noise[:400], labels[:400], noise[400:], 4)
    assert useless.strength > 10 * useful.strength
    assert useful.is_chosen
    hits = (useful.logits.argmax(1) == labels[400:]).double().mean()
    assert hits > 0.9


def test_test_images_choose_nothing():
    features, labels = draw()
    part = linear_probe(features[:200], labels[:200], features[200:210], 4)
    whole = linear_probe(features[:200], labels[:200], 5 * features[200:].roll(90, 0), 4)
    again = linear_probe(features[:200], labels[:200], features[200:], 4)
    assert_close(part.logits, again.logits[:10])
    assert part.strength == whole.strength == again.strength


def test_the_scale_of_a_feature_does_not_matter():
    features, labels = draw()
    scale = torch.tensor([1e-3, 1, 10, 1e3, 1, 1], dtype=torch.float64)
    plain = linear_probe(features[:200], labels[:200], features[200:], 4)
    scaled = linear_probe(features[:200] * scale + 7, labels[:200], features[200:] * scale + 7, 4)
    assert_close(plain.logits, scaled.logits, atol=1e-3, rtol=1e-3)


def test_few_labels_have_the_default_strength():
    features, labels = draw(40, 2)
    few = torch.cat([(labels == label).nonzero().flatten()[:3] for label in (0, 1)])
    found = linear_probe(features[few], labels[few], features, 2)
    assert (found.strength, found.is_chosen) == (DEFAULT_STRENGTH, False)
    assert found.logits.isfinite().all()
