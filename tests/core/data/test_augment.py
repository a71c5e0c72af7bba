"""Batched augmentation computes the same as the operations on single images."""

import pytest
import torch

from vitcli.core.data import augment as aug
from vitcli.core.randomness import keyed_generator

B, H, W = 12, 7, 9


def generator(purpose: str = "test") -> torch.Generator:
    return keyed_generator(3, 0, purpose)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(1, 256, (B, 3, H, W), generator=generator(), dtype=torch.uint8)


def cut(image: torch.Tensor, top: int, left: int, padding: int) -> torch.Tensor:
    """Return the crop of one image, computed pixel by pixel."""
    out = torch.zeros_like(image)
    for y in range(H):
        for x in range(W):
            source_y, source_x = y + top - padding, x + left - padding
            if 0 <= source_y < H and 0 <= source_x < W:
                out[:, y, x] = image[:, source_y, source_x]
    return out


def test_crop_returns_the_window_at_top_and_left(images):
    offset = aug.draw_crop(B, 2, generator())
    expected = [cut(image, *row.tolist(), 2) for image, row in zip(images, offset, strict=True)]
    assert torch.equal(aug.crop(images, offset, 2), torch.stack(expected))
    assert not torch.equal(aug.crop(images, offset.flip(1), 2), torch.stack(expected))


def test_crop_offsets_reach_both_ends_evenly():
    offset = aug.draw_crop(9000, 1, generator())
    counts = (offset @ torch.tensor([3, 1])).bincount(minlength=9)
    assert len(counts) == 9
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_box_covers_exactly_its_pixels():
    box = torch.tensor([[1, 2, 4, 8], [0, 0, 0, 0], [0, 0, H, W], [3, 3, 3, 9]])
    slow = torch.zeros(4, 1, H, W, dtype=torch.bool)
    for row, (top, left, bottom, right) in zip(slow, box.tolist(), strict=True):
        row[:, top:bottom, left:right] = True
    assert torch.equal(aug.inside(box, H, W), slow)


def test_erasing_covers_all_pixels_of_an_oblong_image():
    box = aug.draw_erase(5000, (H, W), 1.0, generator())
    assert box.amin(0).tolist()[:2] == [0, 0]
    assert box.amax(0).tolist()[2:] == [H, W]
    share = aug.inside(box, H, W).float().mean(0)[0]
    assert share.min() > 0.03


def test_erased_boxes_are_tall_and_wide_equally_often():
    box = aug.draw_erase(5000, (64, 64), 1.0, generator())
    height, width = (box[:, 2] - box[:, 0]).double(), (box[:, 3] - box[:, 1]).double()
    assert (height > width).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert (height / width).log().mean().item() == pytest.approx(0, abs=0.03)
    assert (height / width).max() > 2.5


@pytest.mark.parametrize(
    ("share", "centre", "box"),
    [
        (0.75, (16, 16), (8, 8, 24, 24)),
        (0.75, (0, 31), (0, 23, 8, 32)),
        (1.0, (16, 16), (16, 16, 16, 16)),
        (0.0, (16, 16), (0, 0, 32, 32)),
    ],
)
def test_the_cutmix_box_has_the_area_of_its_share(share, centre, box):
    drawn = aug.cut_box(
        torch.tensor([share], dtype=torch.float64), torch.tensor([centre]), (32, 32)
    )
    assert drawn.tolist() == [list(box)]


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_follow_the_beta_distribution(alpha):
    lam, box = aug.draw_mix(
        20_000, (H, W), mixup=alpha, cutmix=0.0, prob=1.0, switch_prob=0.5, generator=generator()
    )
    assert not box.any()
    variance = 1 / (4 * (2 * alpha + 1))  # of Beta(alpha, alpha)
    assert lam.mean().item() == pytest.approx(0.5, abs=0.015)
    assert lam.var().item() == pytest.approx(variance, rel=0.05)


def test_mix_switch_prob_is_the_probability_of_cutmix():
    lam, box = aug.draw_mix(
        5000, (32, 32), mixup=1.0, cutmix=1.0, prob=0.8, switch_prob=0.25, generator=generator()
    )
    assert (lam < 1).float().mean().item() == pytest.approx(0.8 * 0.75, abs=0.03)
    is_cut = (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
    assert is_cut.float().mean().item() == pytest.approx(0.8 * 0.25, abs=0.03)
    assert not ((lam < 1) & is_cut).any()
