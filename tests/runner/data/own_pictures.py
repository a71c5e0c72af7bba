"""Pictures with labels, for tests that write them in several formats."""

import io
from typing import NamedTuple

import numpy as np
from PIL import Image

CLASSES = ("Löwe 🦁", "cat", "犬")


class Picture(NamedTuple):
    split: str
    label: int
    group: str
    pixels: np.ndarray


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def draw_pictures() -> list[Picture]:
    generator = np.random.default_rng(0)
    counts = {"train": 8, "test": 2, "valid": 2}
    return [
        Picture(split, label, f"{split} {label} {row // 2}", pixels)
        for split, count in counts.items()
        for label in range(len(CLASSES))
        for row in range(count)
        for pixels in [generator.integers(0, 256, (12, 10, 3), dtype=np.uint8)]
    ]
