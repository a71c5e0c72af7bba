"""The linear probe is the optimum of its objective, and only training images choose anything."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitcli.core.metrics.linear_probe import (
    DEFAULT_STRENGTH,
    STRENGTHS,
    apply,
    cross_validated,
    fit_layers,
    folds,
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


def test_a_path_of_strengths_ends_where_each_alone_does():
    features, labels = draw()
    norms = []
    for strength, layer in zip(
        STRENGTHS[:4], fit_layers(features, labels, 4, STRENGTHS), strict=False
    ):
        (alone,) = fit_layers(features, labels, 4, [strength])
        assert_close(
            apply(layer, features).softmax(1), apply(alone, features).softmax(1), atol=2e-3, rtol=0
        )
        norms.append(layer[:-1].norm().item())
    assert norms == sorted(norms), "a weaker penalty allows larger weights"


def test_the_images_of_a_class_take_turns_in_the_folds():
    labels = torch.tensor([0] * 11 + [1] * 5 + [0] * 4 + [3] * 6)
    fold = folds(labels)
    assert [fold[labels == label].tolist() for label in (0, 1, 3)] == [
        [*range(5), *range(5), *range(5)], [*range(5)], [*range(5), 0]
    ]  # fmt: skip
    assert not folds(torch.tensor([0] * 10 + [1] * 4)).any(), "a class has too few images"


def test_useless_features_have_a_strong_penalty_and_useful_ones_a_weak_one():
    generator = torch.Generator().manual_seed(1)
    features, labels = draw(600, spread=0.3)
    noise = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    useful = linear_probe(features[:400], labels[:400], 4)
    useless = linear_probe(noise[:400], labels[:400], 4)
    assert useless.strength > 10 * useful.strength
    assert useful.is_chosen
    hits = (apply(useful.layer, features[400:]).argmax(1) == labels[400:]).double().mean()
    assert hits > 0.9


def test_an_image_is_judged_by_a_probe_that_has_not_seen_it():
    """Random labels are learned by heart, but not foretold."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 200, generator=generator, dtype=torch.float64)
    labels = torch.arange(60) % 2
    seen = apply(linear_probe(features, labels, 2).layer, features)
    unseen = cross_validated(features, labels, 2)
    assert unseen is not None
    assert seen.argmax(1).equal(labels)
    assert (unseen.argmax(1) == labels).double().mean() < 0.75
    assert cross_validated(features[:8], labels[:8], 2) is None


def test_the_scale_of_a_feature_does_not_matter():
    features, labels = draw()
    scale = torch.tensor([1e-3, 1, 10, 1e3, 1, 1], dtype=torch.float64)
    plain, other = features[200:], features[200:] * scale + 7
    found = linear_probe(features[:200], labels[:200], 4)
    scaled = linear_probe(features[:200] * scale + 7, labels[:200], 4)
    assert_close(apply(found.layer, plain), apply(scaled.layer, other), atol=1e-3, rtol=1e-3)


def test_a_constant_feature_is_harmless():
    features, labels = draw()
    constant = torch.cat([features, torch.full((len(features), 1), 5.0).double()], 1)
    found = linear_probe(constant, labels, 4)
    assert_close(
        apply(found.layer, constant), apply(linear_probe(features, labels, 4).layer, features)
    )


def test_few_labels_have_the_default_strength():
    features, labels = draw(40, 2)
    few = torch.cat([(labels == label).nonzero().flatten()[:3] for label in (0, 1)])
    found = linear_probe(features[few], labels[few], 2)
    assert (found.strength, found.is_chosen) == (DEFAULT_STRENGTH, False)
    assert found.layer.isfinite().all()


def test_features_of_an_evaluation_can_be_fitted():
    """Tensors of inference mode take part in no backward pass."""
    with torch.inference_mode():
        features, labels = draw()
        found = linear_probe(features[:200].float(), labels[:200], 4)
    assert math.isfinite(found.layer.sum().item())
