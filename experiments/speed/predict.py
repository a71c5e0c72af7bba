"""Compare ``vitcli predict`` with torchvision's ImageFolder and DataLoader, with the same model.

Usage: python experiments/speed/predict.py [--run RUN] [--pictures 5000] [--rounds 5]
The pictures are JPEG files of 500x375 pixels in a temporary folder. Each round is two processes of
their own, vitcli first. The time runs from the list of files to the last answer; the memory is the
peak above that of the process with its model. Speeds and peaks are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIZE, WORKERS, BATCH_SIZE = (500, 375), 2, 64
SIDES = ("vitcli", "torchvision")


def make_pictures(folder: Path, count: int) -> None:
    """Write pictures with the detail of photos: noise at several scales."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(count):
        layers = []
        for cells in ((4, 3), (32, 24), (250, 188)):
            noise = random.integers(0, 256, (cells[1], cells[0], 3), dtype=np.uint8)
            layers.append(np.asarray(Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC)))
        pixels = np.average(layers, axis=0, weights=(4, 2, 1)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=90)


def rss(field: str) -> int:
    """Return a size of this process in bytes: VmRSS, or VmHWM for its peak."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{field}:")[2].split()[0])


def of_vitcli(run: str, root: str) -> int:
    import vitcli

    classifier = vitcli.load_classifier(run)
    begin()
    files = sorted(str(path) for path in Path(root).rglob("*.jpg"))
    return sum(not answer.error for answer in classifier.stream(files))


def of_torchvision(run: str, root: str) -> int:
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    import vitcli

    model, data = vitcli.load_model(run), vitcli.load_run(run).spec.data
    height, width = model.image_shape[1:]
    steps = [transforms.Resize(min(height, width)), transforms.CenterCrop((height, width))]
    steps += [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
    begin()
    folder = ImageFolder(root, transforms.Compose(steps))
    count = 0
    with torch.inference_mode():
        for images, _ in DataLoader(folder, batch_size=BATCH_SIZE, num_workers=WORKERS):
            count += len(model(images).softmax(1).max(1).values.tolist())
    return count


def begin() -> None:
    global began, before
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    began, before = time.perf_counter(), rss("VmRSS")


began, before = 0.0, 0


def measure(side: str, run: str, root: str) -> None:
    count = {"vitcli": of_vitcli, "torchvision": of_torchvision}[side](run, root)
    numbers = [count / (time.perf_counter() - began), (rss("VmHWM") - before) / 1e6]
    print(json.dumps(numbers))  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", default="cifar10-pocket")
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return measure(options.side[0], options.run, options.side[1])
    with tempfile.TemporaryDirectory() as root:
        make_pictures(Path(root, "pictures"), options.pictures)
        numbers: dict[str, list[list[float]]] = {side: [] for side in SIDES}
        for turn in range(options.rounds + 1):  # the first is a warm-up
            for side in SIDES:
                command = [sys.executable, __file__, "--run", options.run, "--side", side, root]
                output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                if turn:
                    numbers[side].append(json.loads(output.stdout))
    print(f"{options.pictures} pictures, {options.run}, {os.cpu_count()} cores")  # noqa: T201
    for side in SIDES:
        speed, peak = map(statistics.median, zip(*numbers[side], strict=True))
        print(f"{side}: {speed:.1f} pictures/s, {peak:.0f} MB above the model")  # noqa: T201
    pairs = zip(*(numbers[side] for side in SIDES), strict=True)
    ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
    print(f"vitcli is {statistics.median(ratios):.2f} times as fast: {ratios}")  # noqa: T201


if __name__ == "__main__":
    main()
