"""An empty cache, a tiny CIFAR-10 whose MD5 sums replace the real ones, and a user's pictures."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import canonical_order
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.load import load_data
from vitcli.runner.text import ignore_message

CIFAR = DataSpec(name="cifar10")
FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
NAMES = list(CATALOGUE["cifar10"].info.class_names)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def batch(pixels: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
    """A batch as of 2009, when a dtype was pickled with 0 and 1 for False and True."""
    content = pickle.dumps({"data": pixels.reshape(len(pixels), -1), key: labels}, protocol=2)
    old = content.replace(b"\x89\x88\x87", b"K\x00K\x01\x87", 1)
    assert old != content
    return old


def write_batches(root: Path, files: dict[str, bytes]) -> Path:
    (root / FOLDER).mkdir(parents=True)
    for name, content in files.items():
        (root / FOLDER / name).write_bytes(content)
    return root


def write_archive(root: Path, files: dict[str, bytes], prefix: str = f"{FOLDER}/") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / ARCHIVE, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return root


def write_class_folders(root: Path, tiny_batches: dict[str, tuple[np.ndarray, list[int]]]) -> Path:
    for file, (pixels, labels) in tiny_batches.items():
        split = "test" if file == "test_batch" else "train"
        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            path = root / split / NAMES[label] / f"{file}-{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(path)
    return root


def in_order(images: Images) -> Images:
    return images[canonical_order(images)]


def same(one, other) -> bool:
    pairs = [(one.train, other.train), (one.test, other.test)]
    return one.data_hash == other.data_hash and all(
        torch.equal(a.pixels, b.pixels) and torch.equal(a.labels, b.labels) for a, b in pairs
    )


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


def shoot(root: Path, sizes: dict[str, tuple[int, ...]], kind: str) -> None:
    """Write groups of pictures: copies of a file, or the same scene with other noise."""
    generator = np.random.default_rng(0)
    for name, groups in sizes.items():
        (root / name).mkdir(parents=True)
        for group, size in enumerate(groups):
            scene = generator.integers(0, 236, (20, 20, 3))
            for shot in range(size):
                noise = generator.integers(
                    0, 20 if kind == "noise" and size > 1 else 1, scene.shape
                )
                path = root / name / f"{group}-{shot}.png"
                Image.fromarray((scene + noise).astype(np.uint8)).save(path)


def spec(root: Path, **options: Any) -> DataSpec:
    return DataSpec(name=f"imagefolder:{root}", **options)


def load(root: Path, messages: list[str] | None = None, **options: Any) -> DataSet:
    hear = ignore_message if messages is None else messages.append
    return load_data(spec(root, **options), on_message=hear)


@pytest.fixture
def root(tmp_path) -> Path:
    return draw_pets(tmp_path / "pets")
