"""Measure how several trainings share one GPU, as the trials of ``vitcli ablate -j`` do.

Usage: python experiments/speed/sharing.py [COUNT] [--device cuda] [--epochs 40] [-o FILE.json]

COUNT trainings of cifar10-plain start at once on a generated data set. The speed of each is the
median over the epochs in the middle, while all of them train. Without NVIDIA's Multi-Process
Service (MPS), the kernels of several processes take turns; start it with
``nvidia-cuda-mps-control -d``, and stop it with ``echo quit | nvidia-cuda-mps-control``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from vitcli.runner.files import commit_json
from vitcli.runner.machine.device import environment, pick_device


def speed(metrics: Path) -> float:
    """Return the median images per second of the epochs in the middle of a training."""
    speeds = [json.loads(line)["images_per_second"] for line in metrics.read_text().splitlines()]
    return statistics.median(speeds[len(speeds) // 4 : -len(speeds) // 8])


def measure(count: int, device: str, epochs: int, folder: Path) -> list[float]:
    """Train ``count`` models at once; return the images per second of each."""
    words = [sys.executable, "-m", "vitcli", "train", "cifar10-plain", "--data", "shapes"]
    words += ["--device", device, "--epochs", str(epochs), "-s", "train.eval_every=10"]
    runs = [folder / str(seed) for seed in range(count)]
    trainings = [
        subprocess.Popen([*words, "--seed", str(seed), "-o", str(run)], stdout=subprocess.DEVNULL)
        for seed, run in enumerate(runs)
    ]
    codes = [training.wait() for training in trainings]
    if any(codes):
        raise SystemExit("a training failed")
    return [speed(run / "metrics.jsonl") for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=8, metavar="COUNT")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.count, options.device, options.epochs, Path(folder))
    row = {
        "count": options.count,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "images_per_second": statistics.median(found),
        "total": sum(found),
    } | environment(pick_device(options.device))
    sys.stdout.write(json.dumps(row, indent=2) + "\n")
    if options.output:
        commit_json(options.output, row)


if __name__ == "__main__":
    main()
