"""Class folders of random pictures, as a user has them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitcli.core.data.source import DataSet
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data


def draw_pets(folder: Path) -> Path:
    """Two classes, eight training and two test pictures of 20x20 each."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 2)):
        for name in ("dog", "cat"):
            add(folder / split / name, count, generator)
    return folder


def add(
    folder: Path, count: int, generator: np.random.Generator, size: tuple[int, int] = (20, 20)
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{size[0]}-{i}.png")


def spec(root: Path, **options: Any) -> DataSpec:
    return DataSpec(name=f"imagefolder:{root}", **options)


def load(root: Path, messages: list[str] | None = None, **options: Any) -> DataSet:
    heard = [] if messages is None else messages
    return load_data(spec(root, **options), on_message=heard.append)
