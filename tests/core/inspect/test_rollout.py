"""Rollout and gradient rollout equal results by hand and finite differences."""

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.inspect.rollout import grad_rollout, rollout
from vitcli.core.nn.attention_rule import AttentionRule

A = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]])[None]  # (1, 2, 2, 2)
B = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])[None]


def test_rollout_equals_the_result_by_hand():
    # Means over heads: A [[.75, .25], [.25, .75]], B [[0, 1], [1, 0]].
    # With half the identity: [[.875, .125], [.125, .875]] and [[.5, .5], [.5, .5]].
    assert_close(rollout([A]), torch.tensor([[[0.875, 0.125], [0.125, 0.875]]]))
    assert_close(rollout([A, B]), torch.full((1, 2, 2), 0.5))
    # Without a residual: B @ A swaps the rows of A; A @ B would swap its columns.
    assert_close(rollout([A, B], residual=False), torch.tensor([[[0.25, 0.75], [0.75, 0.25]]]))
    lopsided = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    assert_close(rollout([lopsided, B], residual=False), torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("pool", ["cls", "mean", "seq"])
def test_logits_with_weights_equal_those_of_the_fused_path(place, pool):
    model, images = build(norm_position=place, pool=pool), pictures()
    logits, weights = model.forward_with_weights(images)
    assert_close(logits, model(images))
    assert_close(weights[1], model.attention_weights(images)[1])
    assert set(model.forward_with_weights(images, [-1])[1]) == {1}


class GivenWeights(AttentionRule):
    """An attention rule with given weights, independent of queries and keys."""

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.given = given

    def forward(self, query, key, value):
        return self.given @ value


def by_hand(model, image, wanted: int) -> torch.Tensor:
    """Return the relevance for one image, with gradients as finite differences of the weights."""
    attns = [block.attn.inner for block in model.blocks]
    layers = [model.attention_weights(image)[i] for i in range(len(attns))]
    relevance = torch.eye(layers[0].shape[-1], dtype=torch.float64)[None]
    for attn, weights in zip(attns, layers, strict=True):
        rule, gradient = attn.attend, torch.zeros_like(weights)
        for index in torch.cartesian_prod(*map(torch.arange, weights.shape[1:])).tolist():
            outs = []
            for sign in (1, -1):
                moved = weights.clone()
                moved[(0, *index)] += sign * 1e-5
                attn.attend = GivenWeights(moved)
                outs.append(model(image)[0, wanted].item())
            attn.attend = rule
            gradient[(0, *index)] = (outs[0] - outs[1]) / 2e-5
        relevance = relevance + (weights * gradient).clamp(min=0).mean(1) @ relevance
    return relevance


@pytest.mark.parametrize("place", ["pre", "post"])
def test_the_relevance_equals_finite_differences_of_the_logit(place):
    model = build(img_size=(8, 8), num_heads=2, norm_position=place).requires_grad_(False)
    image = pictures(1, (8, 8))
    relevance, logits = grad_rollout(model, image, torch.tensor([3]))
    with torch.no_grad():
        assert_close(relevance, by_hand(model, image, 3), rtol=1e-6, atol=1e-8)
        assert_close(logits, model(image))
    assert not relevance.requires_grad
