"""Random numbers as functions of a key: the same key draws the same numbers, whatever came before.

A key is a purpose and whatever the numbers depend on, such as ``("init", seed, "head.weight")``.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Generator

Draws = Callable[[str], Generator]
"""Name of a tensor -> its own generator, at its beginning; ask once for each tensor."""


def seed_of(*key: int | str) -> int:
    """A seed in 0 .. 2^63 - 1; neighbouring keys do not have neighbouring seeds."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_generator(*key: int | str) -> Generator:
    """A CPU generator that depends on its key and on nothing else."""
    return Generator().manual_seed(seed_of(*key))


def begin_step(device: torch.device, seed: int, step: int) -> None:
    """Make what a training step draws on its device a function of (seed, step).

    Dropout and drop path draw from torch's default generator of the device, which is Philox, a
    counter-based generator, on a GPU. Only that generator is seeded, on the host;
    ``torch.manual_seed`` visits every kind of device and is much slower. A CUDA graph takes the
    new seed when it is replayed, so call this before the replay.
    """
    default_generator(device).manual_seed(seed_of("step", seed, step))


def default_generator(device: torch.device) -> Generator:
    """The generator that torch draws from on a device where none is named."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator
