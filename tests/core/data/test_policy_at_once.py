"""The policies for CUDA compute the pixels of the policies for CPUs."""

import itertools
import shutil

import pytest
import torch

from vitcli.core.data.batches import channels_on_device, epoch_rows, make_batch
from vitcli.core.data.policy import (
    OPS,
)
from vitcli.core.data.policy_at_once import apply_at_once, draw_settings
from vitcli.core.data.source import Images
from vitcli.core.spec import AugmentSpec
from vitcli.runner.train.build import compiled_make_batch

SIZES = [(3, 32, 32), (3, 9, 14), (1, 12, 8), (4, 20, 20), (3, 2, 2), (1, 1, 1)]
"""Channels, height and width."""


def pictures(count: int, channels: int, height: int, width: int) -> torch.Tensor:
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


def at_once(images: torch.Tensor, op: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    height, width = images.shape[-2:]
    return apply_at_once(images, draw_settings(op, strength, (height, width)))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", SIZES)
def test_every_operation_gives_the_same_pixels_at_every_strength(name, shape):
    height, width = shape[1:]
    strength = strengths(name, (height, width)).repeat_interleave(8)
    images = pictures(8, *shape).repeat(len(strength) // 8, 1, 1, 1)
    op = torch.full((len(images), 1), list(OPS).index(name))
    expected = OPS[name].apply(images, strength)
    assert torch.equal(at_once(images, op, strength[:, None]), expected)


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
@pytest.mark.parametrize("policy", ["rand_augment", "trivial_augment"])
def test_a_compiled_batch_has_the_same_pixels(policy):
    spec, images = AugmentSpec(policy=policy, crop_padding=2), pictures(2000, 3, 20, 27)
    data = Images(images, torch.zeros(len(images), dtype=torch.long))
    channels = channels_on_device((0.5,) * 3, (0.2,) * 3, torch.device("cpu"))
    made = []
    for at_once, make in ((False, make_batch), (True, compiled_make_batch())):
        rows = epoch_rows(len(images), (20, 27), spec, seed=0, epoch=0, at_once=at_once)
        made.append(make(data, rows, spec, channels, 10)["images"])
    assert torch.equal(*made)
