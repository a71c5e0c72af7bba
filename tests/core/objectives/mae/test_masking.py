"""Selections of patches, and the way back."""

import torch
from torch.testing import assert_close

from vitcli.core.objectives.mae.masking import nearest_visible, put, split_patches, take

NOISE = torch.rand(3, 64, generator=torch.Generator().manual_seed(0))


def test_every_patch_is_visible_or_masked_and_the_ratio_is_exact():
    visible, masked = split_patches(NOISE, 48)
    assert (visible.shape, masked.shape) == ((3, 16), (3, 48))
    both = torch.cat([visible, masked], dim=1).sort(dim=1).values
    assert torch.equal(both, torch.arange(64).expand(3, -1))


def test_each_patch_is_masked_equally_often():
    noise = torch.rand(20_000, 8, generator=torch.Generator().manual_seed(0))
    _, masked = split_patches(noise, 6)
    shares = masked.flatten().bincount(minlength=8) / len(noise)
    assert_close(shares, torch.full((8,), 0.75), atol=0.02, rtol=0)


def test_what_is_taken_can_be_put_back():
    """The patches are shuffled when they are taken, and are in their places afterwards."""
    tokens, (visible, masked) = torch.randn(3, 64, 5), split_patches(NOISE, 48)
    back = put(take(tokens, visible), visible, torch.zeros_like(tokens))
    back = put(take(tokens, masked), masked, back)
    assert torch.equal(back, tokens)
    assert not torch.equal(torch.cat([take(tokens, visible), take(tokens, masked)], 1), tokens)


def test_the_nearest_visible_patch_has_the_smallest_distance():
    noise = torch.rand(4, 15)
    visible, masked = split_patches(noise, 10)
    found = nearest_visible(visible, masked, (3, 5))
    for row in range(4):
        for patch, nearest in zip(masked[row].tolist(), found[row].tolist(), strict=True):
            distances = {
                other: (other // 5 - patch // 5) ** 2 + (other % 5 - patch % 5) ** 2
                for other in sorted(visible[row].tolist())
            }
            assert nearest == min(distances, key=lambda other: distances[other])
