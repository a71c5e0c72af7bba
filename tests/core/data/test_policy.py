"""Each operation equals torchvision's, one by one and at once, as CUDA needs it."""

import itertools
import shutil

import pytest
import torch
from torch.testing import assert_close
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms.autoaugment import _apply_op

from vitcli.core.data.batches import augmented_batch, channels_on_device, epoch_rows
from vitcli.core.data.policy import OPS, draw_rand_augment, draw_trivial_augment
from vitcli.core.data.policy_at_once import apply_at_once, draw_settings
from vitcli.core.data.source import Images
from vitcli.core.spec import AugmentSpec
from vitcli.runner.train.build import compiled_batch

THEIRS = {name: name.title().replace("_", "") for name in OPS}  # shear_x -> ShearX
STRENGTHS: dict[str, list[float]] = {
    "shear_x": [-0.37, 0.23], "shear_y": [-0.23, 0.37], "rotate": [-25, 40],
    "translate_x": [-5, 3], "translate_y": [-2, 6], "brightness": [0.4, 1.7], "color": [0.1, 1.8],
    "contrast": [0.3, 1.6], "sharpness": [0.2, 1.9], "posterize": [3, 6], "solarize": [60, 200],
}  # fmt: skip


def pictures(count: int = 6) -> torch.Tensor:
    noise = torch.rand(count, 3, 8, 8)
    smooth = torch.nn.functional.interpolate(noise, size=(24, 32), mode="bicubic")
    return (smooth.clamp(0, 1) * 255).byte()


@pytest.mark.parametrize("name", OPS)
def test_an_operation_equals_torchvision(name):
    images = pictures()
    for strength in STRENGTHS.get(name, [0.0]):
        ours = OPS[name].apply(images, torch.full((len(images),), float(strength)))
        # torchvision adds 1 to the factors of tone operations, and expects shears in degrees.
        given = strength - 1 if OPS[name].neutral == 1 else strength
        if name == "posterize":
            given = int(strength)
        theirs = _apply_op(images, THEIRS[name], given, InterpolationMode.NEAREST, None)
        difference = (ours.int() - theirs.int()).abs()
        geometric = name in ("shear_x", "shear_y", "rotate")
        wrong = (difference > 1).float().mean().item()
        # A source position on the edge between two pixels may round to either pixel.
        assert wrong <= (0.02 if geometric else 0.0), (name, strength, wrong)
        assert strength == 0 or not torch.equal(ours, images)


@pytest.mark.parametrize(
    ("name", "strength", "channels"),
    [
        *(("translate_x", 3.7, 3), ("translate_y", -2.7, 3), ("posterize", 3.4, 3)),
        *(("equalize", 0.0, 3), ("color", 0.1, 1), ("color", 1.8, 1)),
    ],
)
def test_integers_and_images_of_one_channel_equal_torchvision_exactly(name, strength, channels):
    images = pictures()[:, :channels]
    images[:, 1:2] //= 40  # one channel of few levels, one of a single level
    images[:, 2:] = 77
    ours = OPS[name].apply(images, torch.full((len(images),), strength))
    given = strength - 1 if name == "color" else int(strength)
    theirs = _apply_op(images, THEIRS[name], given, InterpolationMode.NEAREST, None)
    assert torch.equal(ours, theirs)


def test_rand_augment_draws_every_operation_at_one_magnitude():
    generator = torch.Generator().manual_seed(0)
    op, strength = draw_rand_augment(28_000, (32, 64), 2, 15, generator)
    counts = op.flatten().bincount(minlength=len(OPS)).float() / op.numel()
    assert counts.min() > 0.9 / len(OPS)
    names = list(OPS)
    shear = strength[op == names.index("shear_x")].unique()
    assert shear.tolist() == pytest.approx([-0.15, 0.15])
    moved = strength[op == names.index("translate_x")].unique()
    assert moved.tolist() == pytest.approx([-75 / 331 * 64, 75 / 331 * 64])
    assert strength[op == names.index("posterize")].unique().tolist() == [6]
    assert strength[op == names.index("solarize")].unique().tolist() == [127.5]


def test_trivial_augment_draws_one_operation_at_any_magnitude():
    op, strength = draw_trivial_augment(20_000, torch.Generator().manual_seed(0))
    assert op.shape == (20_000, 1)
    turns = strength[op == list(OPS).index("rotate")]
    assert (turns.min(), turns.max()) == (-135, 135)
    assert len(turns.abs().unique()) == 31


@pytest.mark.parametrize("policy", ["RandAugment", "TrivialAugmentWide"])
def test_every_magnitude_equals_torchvision(policy):
    is_rand = policy == "RandAugment"
    size = [(32, 64)] if is_rand else []
    theirs = getattr(autoaugment, policy)()._augmentation_space(31, *size)
    sides = {"translate_x": 64, "translate_y": 32} if is_rand else {}
    level = torch.arange(31) / 30
    for name, op in OPS.items():
        magnitudes, is_signed = theirs[THEIRS[name]]
        change = op.rand * sides.get(name, 1) if is_rand else op.wide
        ours = op.neutral + change * level
        if name == "posterize":
            ours = ours.round()  # as the operation does
        if magnitudes.ndim == 0:  # an operation without strength
            assert change == 0
            continue
        expected = magnitudes.float() + (op.neutral == 1)  # torchvision adds 1 when it applies them
        assert op.is_signed == is_signed, name
        assert_close(ours, expected, atol=1e-4, rtol=0, msg=name)


SIZES = [(3, 9, 14), (1, 12, 8), (4, 20, 20), (3, 2, 2), (1, 1, 1)]
"""Channels, height and width."""


def mixed_pictures(count: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Return noise, smooth pictures, pictures of few levels and of a single level per channel."""
    noise = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)
    ramp = torch.linspace(0, 255, height * width).view(height, width).byte()
    noise[1::4] = ramp
    noise[2::4] //= 60
    noise[3::4, 0] = 77
    return noise


def strengths(name: str, size: tuple[int, int]) -> torch.Tensor:
    """Return every strength at which a policy may apply an operation, once."""
    op, sides = OPS[name], {"translate_x": size[1], "translate_y": size[0]}
    changes = {op.rand * sides.get(name, 1), op.wide}
    level, sign = torch.arange(31) / 30, torch.tensor([-1, 1] if op.is_signed else [1])
    found = [op.neutral + change * level * s for change, s in itertools.product(changes, sign)]
    return torch.cat(found).unique()


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", SIZES)
def test_every_operation_gives_the_same_pixels_at_every_strength(name, shape):
    height, width = shape[1:]
    strength = strengths(name, (height, width)).repeat_interleave(8)
    images = mixed_pictures(8, *shape).repeat(len(strength) // 8, 1, 1, 1)
    op = torch.full((len(images), 1), list(OPS).index(name))
    found = apply_at_once(images, draw_settings(op, strength[:, None], (height, width)))
    assert torch.equal(found, OPS[name].apply(images, strength))


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_a_compiled_batch_has_the_same_pixels():
    spec = AugmentSpec(policy="rand_augment", crop_padding=2)
    images = mixed_pictures(2000, 3, 20, 27)
    data = Images(images, torch.zeros(len(images), dtype=torch.long))
    channels = channels_on_device((0.5,) * 3, (0.2,) * 3, torch.device("cpu"))
    made = []
    for at_once, make in ((False, augmented_batch), (True, compiled_batch())):
        rows = epoch_rows(len(images), (20, 27), spec, seed=0, epoch=0, at_once=at_once)
        made.append(make(data, rows, spec, channels, 10)["images"])
    assert torch.equal(*made)
