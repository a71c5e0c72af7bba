"""Tiny files in the original formats of the named data sets."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitcli.core.data.source import Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import canonical_order
from vitcli.runner.data.catalogue import CATALOGUE

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
