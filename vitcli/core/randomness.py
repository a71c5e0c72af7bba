"""Random numbers as functions of a key: the same key always gives the same numbers.

A key holds a purpose and all that the numbers depend on, such as ``("init", seed, "head.weight")``.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Generator

Draws = Callable[[str], Generator]
"""Maps the name of a tensor to a new generator of its own. Call it once for each tensor."""


def seed_of(*key: int | str) -> int:
    """Return a seed in 0 .. 2^63 - 1. Similar keys have unrelated seeds."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_generator(*key: int | str) -> Generator:
    """Return a CPU generator that depends only on its key."""
    return Generator().manual_seed(seed_of(*key))


def seed_step(device: torch.device, seed: int, step: int, rank: int = 0) -> None:
    """Seed the device's default generator from (seed, step, rank), before a training step.

    Dropout and drop path draw from this generator, so their numbers depend only on these three.
    ``torch.manual_seed`` would seed every kind of device and is much slower. A CUDA graph reads the
    seed when it is replayed, so call this function before the replay.
    """
    key = ("step", seed, step, rank) if rank else ("step", seed, step)
    default_generator(device).manual_seed(seed_of(*key))


def default_generator(device: torch.device) -> Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator
