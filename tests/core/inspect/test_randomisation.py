"""Layers lose their trained weights from the head downwards; maps are compared by their ranks."""

import pytest
import torch
from scipy import stats

from tests.core.specs import build
from vitcli.core.inspect.randomisation import cascade_parts, randomised_cascade, rank_correlation


def randomised(model) -> dict[str, list[str]]:
    """Return, after each part, the parts of which some tensor is still trained."""
    fresh = build(**{"pool": model.spec.pool})
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    left = {}
    initial = fresh.state_dict()
    for part, changed in randomised_cascade(model, fresh):
        state = changed.state_dict()
        left[part] = sorted(
            {
                ".".join(name.split(".")[: 2 if name.startswith("blocks") else 1])
                for name in state
                if not torch.equal(state[name], initial[name])
            }
        )
    return left


def test_parts_lose_their_weights_from_the_head_downwards_and_stay_so():
    model = build(pool="cls")
    left = randomised(model)
    assert list(left) == cascade_parts(2) == ["head", "block 2", "block 1", "embedding"]
    assert left["head"] == ["blocks.0", "blocks.1", "cls_token", "patch_embed", "pos_embed"]
    assert left["block 2"] == ["blocks.0", "cls_token", "patch_embed", "pos_embed"]
    assert left["block 1"] == ["cls_token", "patch_embed", "pos_embed"]
    assert left["embedding"] == []


def test_the_correlation_is_spearmans_with_ties():
    draws = torch.Generator().manual_seed(0)
    one, other = (torch.randint(0, 6, (5, 3, 4), generator=draws).float() for _ in range(2))
    expected = [
        stats.spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(one, other, strict=True)
    ]
    assert rank_correlation(one, other).tolist() == pytest.approx(expected)
