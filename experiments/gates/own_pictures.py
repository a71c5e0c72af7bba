"""Gate of ``finetune``: do few photos suffice, if the training starts from the bundled model?

Usage: python -m experiments.gates.own_pictures FOLDER [--data-dir DIR] [--classes A,B,C]
Writes a folder of pictures as a new user would have it: unequal numbers of photos per class, of
many sizes. They are enlarged test images of CIFAR-10, because the bundled model was trained on the
training images. Then, beside FOLDER: vitcli train finetune --data imagefolder:FOLDER --name pets
"""

import argparse
import random
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data

CLASSES = ("cat", "dog", "horse")
NUM_TRAIN = (70, 35, 15)
"""Number of training pictures of each class."""
NUM_TEST = 200
"""Number of test pictures per class."""
MIN_ACCURACY = 0.8
"""Smallest test accuracy that passes."""
SIDES = (200, 300)
"""Smallest and largest side of a picture in pixels."""


def write_pictures(
    folder: Path, data_dir: Path | None = None, classes: tuple[str, ...] = CLASSES
) -> None:
    """Write ``folder/train/<class>`` and ``folder/test/<class>``; the same pictures each time."""
    data, draw = load_data(DataSpec(name="cifar10"), data_dir=data_dir), random.Random(0)
    for name, num_train in zip(classes, NUM_TRAIN, strict=True):
        own = data.test.pixels[data.test.labels == data.class_names.index(name)]
        for i, pixels in enumerate(own[: num_train + NUM_TEST]):
            place = folder / ("train" if i < num_train else "test") / name
            place.mkdir(parents=True, exist_ok=True)
            size = draw.randint(*SIDES), draw.randint(*SIDES)
            enlarge(pixels, size).save(place / f"{i}.jpg", quality=90)


def enlarge(pixels: Tensor, size: tuple[int, int]) -> Image.Image:
    """Return an image (C, H, W) uint8 as a picture of another size (width, height)."""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize(size, Image.Resampling.BICUBIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--classes", default=",".join(CLASSES), help="three classes of CIFAR-10")
    options = parser.parse_args()
    write_pictures(options.folder, options.data_dir, tuple(options.classes.split(",")))


if __name__ == "__main__":
    main()
