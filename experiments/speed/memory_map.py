"""Measure a training on a data set that is larger than the memory.

``python experiments/speed/memory_map.py`` writes 70,000 pictures of 224x224 (10.5 GB) into the
cache (VITCLI_CACHE), gathers batches of them, trains a small model and removes them. Only anonymous
memory is counted: pages of the memory map can be given back at any time.
"""

import argparse
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

os.environ["VITCLI_MEMORY_MAP"] = "1"

import torch

from vitcli.core.data.source import DataSet, Images
from vitcli.core.data.stored import StoredPixels, as_tensor
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.training import Training
from vitcli.runner.data.cache import Decoded, array_file, load_or_build
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.resolve import resolve

DIFFERENT = 500


def make(count: int, side: int) -> Decoded:
    """Return random pictures, of which only DIFFERENT are different."""
    base = torch.randint(0, 256, (DIFFERENT, 3, side, side), dtype=torch.uint8)
    index = torch.arange(count) % DIFFERENT
    train = Images(as_tensor(StoredPixels(base, index)), index % 10)
    facts: dict[str, Any] = {
        "class_names": tuple("0123456789"),
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    return Decoded(DataSet(name="", train=train, test=train[:100], data_hash="", **facts))


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def anonymous() -> float:
    """Return the anonymous memory of this process in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    path, peak = array_file("memory-map", (options.side, options.side)), 0.0
    begin, build = time.perf_counter(), lambda: make(options.images, options.side)
    data = load_or_build(path, vars(options), build, tell).data
    size, seconds = path.stat().st_size / 1e9, time.perf_counter() - begin
    tell(f"wrote and checked {size:.1f} GB in {seconds:.0f} s; {anonymous():.2f} GB anonymous")
    changes = {"model": {"patch_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2}}
    spec = resolve(ExperimentSpec.model_validate(changes), data)
    training = Training(spec, task_class(spec)(spec, new_module(spec)), data)
    size = spec.train.batch_size
    for name, steps in (("gathered", training.batches(0)), ("trained", training.run_epoch(0))):
        begin, count = time.perf_counter(), 0
        for _ in islice(steps, options.batches):
            count, peak = count + size, max(peak, anonymous())
        rate = count / (time.perf_counter() - begin)
        tell(f"{name} {count:,} images: {rate:,.0f} images/s; {peak:.2f} GB anonymous at most")
    for each in path.parent.glob(f"{path.stem}*"):
        each.unlink()


if __name__ == "__main__":
    main()
