"""Verdicts and intervals of claims about attention, from numbers made by hand."""

import pytest
import torch

from vitcli.plugins.distance.attention_numbers import AttentionNumbers, UntrainedModels
from vitcli.plugins.distance.claims import MORE, SAME, compare, judge_claims

SPREAD = torch.tensor([-0.1, 0.0, 0.1])[:, None, None]


def numbers(far=(4.0, 6.0, 9.5), entropy=3.8, to_patches=0.9, images=3) -> AttentionNumbers:
    """Return numbers of three layers with one head. Uniform attention has a distance of 10."""
    distance = (torch.tensor(far)[None, :, None] + SPREAD)[:images]
    like = torch.ones_like(distance)
    return AttentionNumbers(
        distance=distance,
        near=0.25 * like,
        entropy=like,
        cls_entropy=entropy * like,
        cls_to_patches=to_patches * like,
        similarity=torch.full((3,), torch.nan),
        uniform=10.0,
        uniform_near=0.12,
        num_patches=64,
        num_tokens=65,
    )


def untrained(shift=0.0, entropy=0.0) -> UntrainedModels:
    """Return numbers of four models around those of ``numbers()``, or shifted from them."""
    models = []
    for s in (-0.3, -0.1, 0.1, 0.3):
        far = (4.0 + shift + s, 6.0 + shift + 3 * s, 9.5 + shift - s)
        models.append(numbers(far=far, entropy=3.8 + entropy + s))
    return UntrainedModels(seeds=(0, 1, 2, 3), num_images=3, models=tuple(models))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["holds", "holds", "holds", "holds"]),
        ({"far": (9.5, 6.0, 4.0)}, ["does not hold", "does not hold", "does not hold", "holds"]),
        ({"far": (7.0, 7.0, 7.0)}, ["in part", "undecided", "in part", "holds"]),
        ({"images": 1}, ["holds", "undecided", "holds", "holds"]),
        ({"entropy": 3.0}, ["holds", "holds", "holds", "in part"]),  # 20 of 64 patches
        ({"entropy": 1.0}, ["holds", "holds", "holds", "does not hold"]),
        ({"to_patches": 0.2}, ["holds", "holds", "holds", "does not hold"]),
    ],
    ids=str,
)
def test_a_claim_is_judged_by_what_was_measured(changes, expected):
    assert [claim.verdict for claim in judge_claims(numbers(**changes), untrained())] == expected


@pytest.mark.parametrize(
    ("models", "changes", "expected"),
    [
        (untrained(), {}, [SAME, SAME, SAME, SAME]),
        # Untrained models attend farther in every layer, by more than the spread of their seeds.
        (untrained(shift=3), {}, ["", SAME, MORE, SAME]),
        (untrained(shift=-3), {}, [MORE, SAME, "", SAME]),
        # A claim that does not hold cannot hold more in an untrained model.
        (untrained(shift=-3), {"far": (9.5, 6.0, 4.0)}, ["", "", "", SAME]),
        (untrained(entropy=3), {}, [SAME, SAME, SAME, MORE]),
        (untrained(entropy=-3), {}, [SAME, SAME, SAME, ""]),
        # One image has no interval, so nothing is distinguishable.
        (untrained(shift=3), {"images": 1}, [SAME, SAME, SAME, SAME]),
    ],
)
def test_a_claim_is_compared_with_untrained_models(models, changes, expected):
    claims = judge_claims(numbers(**changes), models)
    assert [claim.against_untrained for claim in claims] == expected


def test_both_sources_of_chance_count():
    seeds = [torch.full((3,), value) for value in (1.0, 2.0, 3.0)]
    found = compare(torch.tensor([7.0, 8.0, 9.0]), seeds)
    half = 4.302653 * (1 + 1 / 3) ** 0.5  # two degrees of freedom, sd 1, one more value
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))  # up to 6.97
    assert found.number == 8
    assert not found.is_above  # 8 is above, but its images are uncertain by 2.48
    assert compare(torch.tensor([7.9, 8.0, 8.1]), seeds).is_above
    assert compare(-torch.tensor([7.9, 8.0, 8.1]), seeds).is_below
