"""An empty cache, a tiny CIFAR-10 whose MD5 sums replace the real ones, and a user's pictures."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image

from tests.runner.data.original_files import BATCHES, NAMES, batch, md5
from vitcli.core.data.source import DataSet
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("VITCLI_DATA", raising=False)
    monkeypatch.delenv("VITCLI_OFFLINE", raising=False)
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny_batches() -> dict[str, tuple[np.ndarray, list[int]]]:
    """Four images of each class a batch: file name -> pixels (40, 3, 32, 32), labels."""
    generator = np.random.default_rng(0)
    files = {}
    for name in [*BATCHES, "test_batch"]:
        pixels = generator.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
        files[name] = pixels, generator.permutation(np.arange(40) % 10).tolist()
    return files


@pytest.fixture
def contents(tiny_batches, monkeypatch) -> dict[str, bytes]:
    files = {name: batch(*arrays) for name, arrays in tiny_batches.items()}
    files["batches.meta"] = pickle.dumps({"label_names": NAMES}, protocol=2)
    reader = torchvision.datasets.CIFAR10
    monkeypatch.setattr(reader, "train_list", [[name, md5(files[name])] for name in BATCHES])
    monkeypatch.setattr(reader, "test_list", [["test_batch", md5(files["test_batch"])]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": md5(files["batches.meta"])})
    return files


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


@pytest.fixture
def root(tmp_path) -> Path:
    return draw_pets(tmp_path / "pets")
