"""Layers lose their trained weights from the head downwards; maps are compared by their ranks."""

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.inspect.maps import MapRequest, rollout_map
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


def test_the_trained_model_stays_as_it_is():
    model = build(pool="mean")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in randomised_cascade(model, build(pool="mean")):
        pass
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_rollout_does_not_depend_on_the_head():
    model, images = build(pool="mean"), pictures(2, (16, 16))
    fresh = build(pool="mean")
    maps = {
        part: rollout_map(MapRequest(model=changed, images=images, layers=(1,)))
        for part, changed in randomised_cascade(model, fresh)
    }
    own = rollout_map(MapRequest(model=model, images=images, layers=(1,)))
    assert_close(rank_correlation(own, maps["head"]), torch.ones(2, dtype=torch.float64))
    assert (rank_correlation(own, maps["embedding"]) < 0.99).all()


def test_the_correlation_is_spearmans_with_ties():
    draws = torch.Generator().manual_seed(0)
    one, other = (torch.randint(0, 6, (5, 3, 4), generator=draws).float() for _ in range(2))
    expected = [
        stats.spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(one, other, strict=True)
    ]
    assert rank_correlation(one, other).tolist() == pytest.approx(expected)


def test_a_constant_map_ranks_nothing():
    assert rank_correlation(torch.zeros(1, 2, 2), torch.rand(1, 2, 2)).tolist() == [0]
