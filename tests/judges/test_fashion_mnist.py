"""Judge: the archive of Fashion-MNIST, as Debian packs it. It decides the reader of IDX files."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.commands import vitcli
from tests.judges.conftest import Judge
from tests.runner.data.conftest import in_order
from vitcli.core.data.source import Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data

JUDGE = Judge("Fashion-MNIST", "MIT", "the reader of IDX files", of="Debian 0.0~git20200523")
pytestmark = [pytest.mark.judge, pytest.mark.usefixtures("here")]
FOLDER = Path("/usr/share/datasets/fashion-mnist")


def idx(name: str) -> np.ndarray:
    """Return the numbers of a file after its head: 4 bytes, and 4 bytes for each size."""
    content = gzip.decompress((FOLDER / f"{name}-ubyte.gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])


def test_the_archive_of_debian_is_read(agree):
    if not FOLDER.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    assert vitcli("data", "get", "fashion-mnist", "--from", FOLDER)[0] == 0
    data = load_data(DataSpec(name="fashion-mnist"))
    for split, name, count in ((data.train, "train", 60_000), (data.test, "t10k", 10_000)):
        agree(f"{name}: images", len(split), count, within=0)
        pixels, labels = (
            torch.tensor(idx(f"{name}-{each}")) for each in ("images-idx3", "labels-idx1")
        )
        wanted = in_order(Images(pixels.view(-1, 1, 28, 28), labels.long()))
        assert split.pixels.equal(wanted.pixels)
        assert split.labels.equal(wanted.labels)
    pixels = data.train.pixels.float() / 255  # most users state this mean and deviation
    agree("train: mean of the pixels", pixels.mean(), 0.2860, within=1e-3)
    agree("train: deviation of the pixels", pixels.std(), 0.3530, within=1e-3)
