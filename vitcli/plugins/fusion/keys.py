"""Random numbers on the device as functions of an image's content.

They need no table of the data set, and do not depend on the order of the images, on the split or on
the machine: only integer operations are used. Axes: B batch, C channels, H W pixels.
"""

from functools import cache

import torch
from torch import Tensor

from vitcli.core.randomness import keyed_generator, seed_of

GOLDEN = -0x61C8864680B583EB
MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Constants of SplitMix64 as signed integers."""
BANK = 1 << 20
"""Number of values in the bank of noise; a power of 2."""


def scramble(keys: Tensor) -> Tensor:
    """Return unrelated keys, int64 -> int64: a permutation of all 64-bit integers.

    The last step of SplitMix64. Steele et al. 2014, https://doi.org/10.1145/2714064.2660195
    """
    for shift, factor in zip((30, 27), MULTIPLIERS, strict=True):
        keys = (keys ^ _shift(keys, shift)) * factor
    return keys ^ _shift(keys, 31)


def _shift(keys: Tensor, count: int) -> Tensor:
    return (keys >> count) & ((1 << (64 - count)) - 1)


@cache
def _weights(length: int, device: torch.device) -> Tensor:
    generator = keyed_generator("content", length)
    drawn = torch.randint(-(2**63), 2**63 - 1, (length,), generator=generator)
    return (drawn | 1).to(device)


def content_keys(pixels: Tensor) -> Tensor:
    """Return a key of each image's content: (B, C, H, W) uint8 -> (B,) int64."""
    flat = pixels.flatten(1)
    return scramble((flat.long() * _weights(flat.shape[1], flat.device)).sum(1))


def keys_for(keys: Tensor, *purpose: int | str) -> Tensor:
    """Return keys for a purpose, such as ``("noise", seed, epoch)``: (B,) -> (B,)."""
    return scramble(keys ^ seed_of(*purpose))


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return numbers in [0, 1) for each key: (B,) int64 -> (B, count) float32."""
    steps = torch.arange(1, count + 1, device=keys.device) * GOLDEN
    return _shift(scramble(keys[:, None] + steps), 40).float() / (1 << 24)


@cache
def _bank(device: torch.device) -> Tensor:
    return torch.randn(BANK, generator=keyed_generator("noise bank")).to(device)


def noise(keys: Tensor, length: int) -> Tensor:
    """Return white noise of deviation 1: (B,) int64 -> (B, length) float32.

    It is a piece of a bank of 2^20 values that begins at a random place. Drawing new values for
    every image would take longer than a training step of a small model.
    """
    places = keys[:, None] + torch.arange(length, device=keys.device)
    return _bank(keys.device)[places & (BANK - 1)]
