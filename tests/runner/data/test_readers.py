"""The readers of the original formats: tiny files whose MD5 sums replace the real ones."""

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision.datasets

from tests.runner.data.conftest import (
    ARCHIVE,
    CIFAR,
    FOLDER,
    batch,
    in_order,
    md5,
    write_archive,
    write_batches,
)
from vitcli.core.data.source import Images
from vitcli.core.spec import DataSpec
from vitcli.runner.data import readers
from vitcli.runner.data.arrays import data_hash
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.errors import InputError

pytestmark = pytest.mark.usefixtures("cache")


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [write_batches, write_archive])
@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_changed_batch_is_refused_before_it_is_unpickled(tmp_path, contents, write, name):
    canary = tmp_path / "ran"
    contents[name] = pickle.dumps(Canary(canary))
    with pytest.raises(InputError, match=rf"{name} is not the published file \(MD5 differs\)"):
        load_data(CIFAR, data_dir=write(tmp_path / "a", contents))
    assert not canary.exists()
    pickle.loads(contents[name])
    assert canary.exists(), "a canary that never sings proves nothing"


def test_the_bytes_that_were_checked_are_the_bytes_that_are_read(tmp_path, contents, monkeypatch):
    root, canary, read = write_batches(tmp_path / "a", contents), tmp_path / "ran", readers._read

    def swap_then_read(*args):
        (root / FOLDER / "data_batch_1").write_bytes(pickle.dumps(Canary(canary)))
        return read(*args)

    monkeypatch.setattr(readers, "_read", swap_then_read)
    assert len(load_data(CIFAR, data_dir=root).train) == 200
    assert not canary.exists()


@pytest.mark.parametrize("prefix", ["../", "/", f"../{FOLDER}/", f"./{FOLDER}/../../"])
def test_an_archive_whose_paths_escape_writes_nothing(tmp_path, contents, cache, prefix):
    root = write_archive(tmp_path / "deep" / "a", contents, prefix)
    with pytest.raises(InputError, match="not the published archive"):
        load_data(CIFAR, data_dir=root)
    written = {p for p in tmp_path.rglob("*") if p.is_file() and cache not in p.parents}
    assert written == {root / ARCHIVE}


def tiny_mnist(monkeypatch, reader, root: Path) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    parts, sums = {}, []
    for name, _ in reader.resources:
        count = 30 if name.startswith("train") else 20
        if "images" in name:
            parts[name] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        else:
            parts[name] = (np.arange(count) % 10).astype(np.uint8)
        shape = parts[name].shape
        head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        content = gzip.compress(head + parts[name].tobytes())
        (root / reader.__name__ / "raw").mkdir(parents=True, exist_ok=True)
        (root / reader.__name__ / "raw" / name).write_bytes(content)
        sums.append((name, md5(content)))
    monkeypatch.setattr(reader, "resources", sums)
    return parts


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_in_its_original_format(tmp_path, monkeypatch, name):
    reader = getattr(torchvision.datasets, CATALOGUE[name].reader)
    parts = tiny_mnist(monkeypatch, reader, tmp_path)
    data = load_data(DataSpec(name=name), data_dir=tmp_path)
    assert data.train.pixels.shape == (30, 1, 28, 28)
    assert data.test.pixels.shape == (20, 1, 28, 28)
    pixels = torch.from_numpy(parts["train-images-idx3-ubyte.gz"])[:, None]
    labels = torch.from_numpy(parts["train-labels-idx1-ubyte.gz"]).long()
    assert data_hash([in_order(Images(pixels, labels))]) == data_hash([data.train])
    three = DataSpec(name=name, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    coloured = load_data(three, data_dir=tmp_path)
    assert coloured.train.pixels.equal(data.train.pixels.expand(-1, 3, -1, -1))
    assert coloured.test.pixels.shape[1] == describe_data(three).in_chans == 3
    path = tmp_path / reader.__name__ / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(InputError, match="MD5 differs"):
        load_data(DataSpec(name=name), data_dir=tmp_path)


def test_a_published_file_is_known_without_its_name_and_time(tmp_path, monkeypatch):
    """As in Debian's package, whose files are those of the authors, compressed by ``gzip -n``."""
    reader, row = torchvision.datasets.FashionMNIST, CATALOGUE["fashion-mnist"]
    tiny_mnist(monkeypatch, reader, tmp_path)
    sums = []
    for (name, _), time in zip(reader.resources, row.gzip_times, strict=True):
        path = tmp_path / "FashionMNIST" / "raw" / name
        plain, buffer = gzip.decompress(path.read_bytes()), io.BytesIO()
        with gzip.GzipFile(name.removesuffix(".gz"), "wb", 9, buffer, mtime=time) as file:
            file.write(plain)
        published = buffer.getvalue()
        sums.append((name, md5(published[:9] + b"\x03" + published[10:])))
        path.write_bytes(gzip.compress(plain, 9)[:9] + b"\x03" + gzip.compress(plain, 9)[10:])
    monkeypatch.setattr(reader, "resources", sums)
    assert len(load_data(DataSpec(name="fashion-mnist"), data_dir=tmp_path).train) == 30


def test_svhn_in_its_original_format(tmp_path, monkeypatch):
    generator, table = np.random.default_rng(0), {}
    for split, count in (("train", 30), ("test", 20)):
        pixels = generator.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]  # 10 stands for the digit 0
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, {"X": pixels, "y": labels})
        name = f"{split}_32x32.mat"
        (tmp_path / name).write_bytes(buffer.getvalue())
        table[split] = ["", name, md5(buffer.getvalue())]
        if split == "train":
            zero = torch.from_numpy(pixels[..., 9]).permute(2, 0, 1)
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", table)
    data = load_data(DataSpec(name="svhn"), data_dir=tmp_path)
    assert data.train.pixels.shape == (30, 3, 32, 32)
    assert torch.bincount(data.test.labels).tolist() == [2] * 10
    assert any(torch.equal(image, zero) for image in data.train.pixels[data.train.labels == 0])


def test_cifar100_in_its_original_format(tmp_path, monkeypatch):
    names = list(CATALOGUE["cifar100"].info.class_names)
    generator, reader = np.random.default_rng(0), torchvision.datasets.CIFAR100
    files = {"meta": pickle.dumps({"fine_label_names": names}, protocol=2)}
    for split in ("train", "test"):
        pixels = generator.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
        files[split] = batch(pixels, list(range(100)), "fine_labels")
        monkeypatch.setattr(reader, f"{split}_list", [[split, md5(files[split])]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": md5(files["meta"])})
    (tmp_path / "cifar-100-python").mkdir()
    for name, content in files.items():
        (tmp_path / "cifar-100-python" / name).write_bytes(content)
    data = load_data(DataSpec(name="cifar100"), data_dir=tmp_path)
    assert (data.num_classes, len(data.train)) == (100, 100)
    assert data.class_names[0] == "apple"
    assert data.class_names[-1] == "worm"


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_agrees_with_torchvision(name):
    row = CATALOGUE[name]
    assert {*row.files, *row.published} <= row.md5.keys()
    if row.archive:
        assert row.folder == getattr(torchvision.datasets, row.reader).base_folder
    assert all(host.startswith("https://") for host in row.hosts)
    assert len(set(row.info.class_names)) == row.info.num_classes
