"""Flipped bits and cut files: no damaged checkpoint is ever loaded."""

import os
import random
from pathlib import Path
from typing import Any

import torch

from tests.faults.fork_server import Tally, finish, main, make_experiment
from vitcli.runner.errors import InputError
from vitcli.runner.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from vitcli.runner.run.folder import MANIFEST, TENSORS, RunDir, steps

ENOUGH_FOR_ALL = 200
"""From so many flips on, the training's checkpoint is cut to every length there is."""
LARGE = 20_000_000
"""Bytes of the large checkpoint."""


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """So many flips of a training's checkpoint, cuts of it, half as many cuts of a large one."""
    rng, tally = random.Random(seed), Tally(undetected=0)
    finish(make_experiment(scratch, 1), scratch / "run")
    checkpoints = RunDir(scratch / "run").checkpoints
    small = checkpoints / str(steps(checkpoints)[0])
    flips = flip_bits(small, count, rng, tally)
    every = count >= ENOUGH_FOR_ALL
    cuts = sum(
        cut(small / name, None if every else some(small / name, 10 * count, rng), tally)
        for name in (TENSORS, MANIFEST)
    )
    values = torch.randn(LARGE // 4, generator=torch.Generator().manual_seed(seed))
    (scratch / "large").mkdir()
    large = save_checkpoint(scratch / "large", Checkpoint(1, {"model.a": values}, {}))
    large_cuts = cut(large / TENSORS, some(large / TENSORS, count // 2, rng), tally)
    return {
        "flips": flips,
        "cuts": cuts,
        "cuts_of_a_large_one": large_cuts,
        **tally.counts,
        "failures": tally.failures,
    }


def some(path: Path, count: int, rng: random.Random) -> list[int]:
    """So many lengths shorter than a file, the longest first."""
    size = path.stat().st_size
    return sorted(rng.sample(range(size), min(count, size)), reverse=True)


def flip_bits(folder: Path, count: int, rng: random.Random, tally: Tally) -> int:
    """One bit at a time, anywhere in the checkpoint's files, but in each a tenth at least."""
    for number in range(count):
        path = folder / (MANIFEST if number % 10 == 0 else TENSORS)
        content = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(content[bit // 8 : bit // 8 + 1])
        tally.check("undetected", is_refused(folder), f"bit {bit} of {path.name}")
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
    load_checkpoint(folder)
    return count


def cut(path: Path, lengths: list[int] | None, tally: Tally) -> int:
    """Shorter and shorter: to these lengths, or to each there is."""
    size = path.stat().st_size
    chosen = lengths if lengths is not None else list(range(size - 1, -1, -1))
    whole = path.read_bytes()
    for length in chosen:
        os.truncate(path, length)
        tally.check("undetected", is_refused(path.parent), f"{path.name} cut to {length}")
    path.write_bytes(whole)
    load_checkpoint(path.parent)
    return len(chosen)


def is_refused(folder: Path) -> bool:
    try:
        load_checkpoint(folder)
    except InputError:
        return True
    return False


if __name__ == "__main__":
    main("damage", campaign, 2000)
