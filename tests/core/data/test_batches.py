"""Batches depend on (seed, epoch, image) only; augmentation computes what single images get."""

import threading

import pytest
import torch
from pydantic import ValidationError
from torch.testing import assert_close

from tests.core.trainings import epoch_batches
from vitcli.core.data import augment as aug
from vitcli.core.data.batches import (
    IMAGES_AT_ONCE,
    THREAD,
    DrawnAhead,
    augmented_batch,
    channels_on_device,
    epoch_order,
    epoch_rows,
    split_batches,
)
from vitcli.core.data.policy import OPS
from vitcli.core.data.source import Images
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import AugmentSpec, DataSpec, ExperimentSpec
from vitcli.core.spec.data import MIN_ALPHA

B, H, W = 12, 7, 9


def generator() -> torch.Generator:
    return keyed_generator(3, 0, "test")


def test_crop_returns_the_window_at_top_and_left():
    noise = torch.randint(1, 256, (B, 3, H, W), generator=generator(), dtype=torch.uint8)
    offset = aug.draw_crop(B, 2, generator())
    padded = torch.nn.functional.pad(noise, (2,) * 4)
    windows = zip(padded, offset.tolist(), strict=True)
    expected = torch.stack([x[:, top : top + H, left : left + W] for x, (top, left) in windows])
    assert torch.equal(aug.crop(noise, offset, 2), expected)
    assert not torch.equal(aug.crop(noise, offset.flip(1), 2), expected)


def test_crop_offsets_reach_both_ends_evenly():
    offset = aug.draw_crop(9000, 1, generator())
    counts = (offset @ torch.tensor([3, 1])).bincount(minlength=9)
    assert all(850 < count < 1150 for count in counts.tolist())
    assert len(counts) == 9


def test_erased_boxes_cover_all_pixels_and_are_tall_and_wide_equally_often():
    box = aug.draw_erase(5000, (H, W), 1.0, generator())
    assert box.amin(0).tolist()[:2] == [0, 0]
    assert box.amax(0).tolist()[2:] == [H, W]
    assert aug.inside(box, H, W).float().mean(0).min() > 0.03
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
    shares = torch.tensor([share], dtype=torch.float64)
    assert aug.cut_box(shares, torch.tensor([centre]), (32, 32)).tolist() == [list(box)]


@pytest.mark.parametrize("alpha", [MIN_ALPHA, 0.2, 1.0, 4.0])
def test_mixup_shares_follow_the_beta_distribution(alpha):
    options = {"prob": 1.0, "switch_prob": 0.5, "generator": generator()}
    lam, box = aug.draw_mix(20_000, (H, W), mixup=alpha, cutmix=0.0, **options)
    assert not box.any()
    variance = 1 / (4 * (2 * alpha + 1))  # of Beta(alpha, alpha)
    assert lam.mean().item() == pytest.approx(0.5, abs=0.015)
    assert lam.var().item() == pytest.approx(variance, rel=0.05)
    with pytest.raises(ValidationError, match="write 0"):
        AugmentSpec(mixup=alpha * MIN_ALPHA / 5)


def test_mix_switch_prob_is_the_probability_of_cutmix():
    options = {"prob": 0.8, "switch_prob": 0.25, "generator": generator()}
    lam, box = aug.draw_mix(5000, (32, 32), mixup=1.0, cutmix=1.0, **options)
    assert (lam < 1).float().mean().item() == pytest.approx(0.8 * 0.75, abs=0.03)
    is_cut = (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
    assert is_cut.float().mean().item() == pytest.approx(0.8 * 0.25, abs=0.03)
    assert not ((lam < 1) & is_cut).any()


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
FULL = AugmentSpec(
    crop_padding=2, flip="random", policy="rand_augment", erasing=0.5, mixup=0.4, cutmix=1.0
)


def images(count: int = 40, side: int = 8) -> Images:
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count) % 4)


def batches(spec: AugmentSpec, *, batch_size: int = 8, **options):
    return epoch_batches(images(), spec, mean=MEAN, std=STD, batch_size=batch_size, **options)


def by_image(spec: AugmentSpec, **options) -> torch.Tensor:
    seed, epoch = options.get("seed", 0), options.get("epoch", 0)
    rows = torch.cat([batch["images"] for batch in batches(spec, **options)])
    return rows[epoch_order(40, seed, epoch).argsort()]


def normal(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(row).view(3, 1, 1) for row in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return which images are equal except for rounding, (B,)."""
    return one.isclose(other, atol=1e-5).flatten(1).all(1)


def test_each_epoch_is_the_data_set_in_an_order_of_its_own():
    orders = [epoch_order(40, *key) for key in ((0, 0), (0, 1), (1, 0))]
    labels = torch.cat([batch["targets"] for batch in batches(AugmentSpec())])
    assert torch.equal(labels, images().labels[orders[0]])
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_copies_repeat_their_pixels_in_another_order():
    spec = AugmentSpec(crop_padding=4, flip="random", policy="rand_augment", erasing=0.5, copies=2)
    found = [by_image(spec, epoch=epoch) for epoch in range(4)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(epoch_order(40, 0, 0), epoch_order(40, 0, 2))


def test_evaluation_keeps_the_order_and_the_smaller_last_batch(monkeypatch):
    monkeypatch.setitem(IMAGES_AT_ONCE, "cpu", 16)
    spec = ExperimentSpec(data=DataSpec(mean=MEAN, std=STD))
    parts = list(split_batches(images(), spec))
    assert [len(part["images"]) for part in parts] == [16, 16, 8]
    assert_close(torch.cat([part["images"] for part in parts]), normal(images().pixels))


def test_augmented_pixels_do_not_depend_on_the_batch():
    spec = FULL.replace(mixup=0.0, cutmix=0.0)
    assert torch.equal(by_image(spec), by_image(spec, batch_size=20))
    assert not torch.equal(by_image(spec), by_image(spec, epoch=1))
    assert not torch.equal(by_image(spec), by_image(spec, seed=1))


def test_random_flips_mirror_half_of_the_images():
    flips = []
    for epoch in range(20):
        seen, plain = by_image(AugmentSpec(flip="random"), epoch=epoch), normal(images().pixels)
        is_flipped = same(seen, plain.flip(-1))
        assert torch.equal(is_flipped, ~same(seen, plain))
        flips.append(is_flipped.float())
    assert torch.stack(flips).mean().item() == pytest.approx(0.5, abs=0.06)


def test_alternating_flips_show_both_sides_in_any_two_epochs():
    spec, plain = AugmentSpec(flip="alternating"), normal(images().pixels)
    sides = [same(by_image(spec, epoch=e), plain) for e in range(4)]
    assert torch.equal(sides[0], ~sides[1])
    assert torch.equal(sides[0], sides[2])
    assert 5 < sides[0].sum() < 35


def test_erasing_erases_one_box_of_the_documented_area():
    side, count = 32, 400
    boxes = aug.draw_erase(count, (side, side), 0.7, keyed_generator(0, 0, "x"))
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / side**2
    erased = areas > 0
    assert erased.float().mean().item() == pytest.approx(0.7, abs=0.06)
    assert areas[erased].min() > 0.015
    assert areas[erased].max() < 0.36
    out = aug.erase(torch.ones(count, 3, side, side), boxes)
    assert_close(1 - out.mean((1, 2, 3)), areas.float())


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_targets_are_shares_of_pixels(mixup, cutmix):
    """Each image has one colour, so the mean of a mixed image gives the shares of its parents."""
    count, classes = 64, 64
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    spec = AugmentSpec(mixup=mixup, cutmix=cutmix)
    every = Images(pixels, torch.arange(count))
    scale = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    (batch,) = epoch_batches(every, spec, batch_size=count, **scale)
    targets = batch["targets"]
    assert_close(targets.sum(1), torch.ones(count))
    expected = targets @ torch.arange(classes).float()
    assert_close(batch["images"].mean((1, 2, 3)), expected, atol=1e-3, rtol=1e-3)
    assert (targets.max(1).values < 1).float().mean() > 0.5
    is_cut = batch["images"].flatten(1).std(1) > 1e-3
    assert bool(is_cut.any()) is (cutmix > 0)
    assert bool(is_cut.all()) is (mixup == 0)


def test_mixing_follows_mix_prob_and_stops_at_mix_off_epoch():
    spec = AugmentSpec(mixup=1.0, mix_prob=0.3, mix_off_epoch=2)
    mixed = [*batches(spec, epoch=0), *batches(spec, epoch=1)]
    shares = torch.cat([batch["targets"].max(1).values for batch in mixed])
    # Two images of the same class mix to that class, so a quarter of the mixed targets are pure.
    assert (shares < 1).float().mean().item() == pytest.approx(0.3 * 0.75, abs=0.12)
    assert batches(spec, epoch=2)[0]["targets"].dtype == torch.int64


@pytest.mark.parametrize("policy", ["rand_augment", "trivial_augment"])
def test_the_rows_for_cuda_make_the_same_batch(policy):
    spec, data = FULL.replace(policy=policy), images(64, 16)
    channels = channels_on_device(MEAN, STD, torch.device("cpu"))
    made = []
    for at_once in (False, True):
        rows = epoch_rows(64, (16, 16), spec, seed=0, epoch=0, at_once=at_once)
        assert ("op" in rows) is not at_once
        made.append(augmented_batch(data, rows, spec, channels, 4))
    assert torch.equal(made[0]["images"], made[1]["images"])
    assert torch.equal(made[0]["targets"], made[1]["targets"])


@pytest.mark.parametrize("at_once", [False, True])
def test_pixels_do_not_depend_on_the_sine_of_a_device(at_once, monkeypatch):
    """Rotations by 45 and 135 degrees have pixels on edges, which one rounding would change."""
    spec, data = AugmentSpec(policy="trivial_augment"), images(2000, 32)
    channels = channels_on_device(MEAN, STD, torch.device("cpu"))
    rows = epoch_rows(2000, (32, 32), spec, seed=0, epoch=0, at_once=at_once)
    expected = augmented_batch(data, rows, spec, channels, 4)["images"]
    turned = OPS["rotate"].apply(data.pixels, torch.full((2000,), 45.0))
    for name in ("cos", "sin", "deg2rad"):
        plain = getattr(torch.Tensor, name)
        next_float = lambda x, plain=plain: plain(x).nextafter(torch.tensor(torch.inf))  # noqa: E731
        monkeypatch.setattr(torch.Tensor, name, next_float)
    assert not torch.equal(OPS["rotate"].apply(data.pixels, torch.full((2000,), 45.0)), turned)
    assert torch.equal(augmented_batch(data, rows, spec, channels, 4)["images"], expected)


def draw(number: int) -> dict[str, torch.Tensor]:
    name = threading.current_thread().name
    return {"number": torch.tensor(number), "is_ahead": torch.tensor(name.startswith(THREAD))}


def test_a_draw_that_was_started_comes_from_a_thread():
    drawn = DrawnAhead(draw)
    drawn.start(3)
    assert not drawn.take(2)["is_ahead"]
    assert drawn.take(3) == {"number": torch.tensor(3), "is_ahead": torch.tensor(True)}
    assert not drawn.take(3)["is_ahead"]


def test_a_thread_ends_although_nobody_takes_its_draw():
    may_go = threading.Event()

    def wait_and_draw(number: int) -> dict[str, torch.Tensor]:
        may_go.wait()
        return draw(number)

    DrawnAhead(wait_and_draw).start(1)
    (thread,) = (each for each in threading.enumerate() if each.name.startswith(THREAD))
    may_go.set()
    thread.join()
