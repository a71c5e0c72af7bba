"""Named data sets: what is loaded, from where and from which formats, and what the cache keeps."""

import gzip
import io
import pickle
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.io
import torch
import torch.nn.functional as F
import torchvision.datasets
from pydantic import ValidationError
from torch import Tensor
from torch.testing import assert_close

from tests.runner.data import conftest
from tests.runner.data.conftest import CIFAR, FOLDER, in_order, md5, write_archive, write_batches
from vitcli.core.data.source import Images, channel_stats
from vitcli.core.spec import GENERATED, TASKS, DataSpec, ExperimentSpec
from vitcli.runner.data import load, readers
from vitcli.runner.data.arrays import data_hash, fitted, hold_out, keep_labels
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.extras import EXTRAS, ExtraReader
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("cache")


def test_batches_archive_and_class_folders_give_the_same_arrays(tmp_path, tiny_batches, contents):
    batches = load_data(CIFAR, data_dir=write_batches(tmp_path / "a", contents))
    archive = load_data(CIFAR, data_dir=write_archive(tmp_path / "b", contents))
    folders = load_data(CIFAR, data_dir=conftest.write_class_folders(tmp_path / "c", tiny_batches))
    assert conftest.same(batches, archive)
    assert conftest.same(batches, folders)
    assert batches.mean == folders.mean
    assert batches.class_names == tuple(conftest.NAMES)
    assert batches.train.pixels.shape == (200, 3, 32, 32)
    assert batches.train.labels.tolist() == sorted(batches.train.labels.tolist())
    wanted = tiny_batches["test_batch"][0][tiny_batches["test_batch"][1].index(3)]
    cats = batches.test.pixels[batches.test.labels == conftest.NAMES.index("cat")]
    assert any(np.array_equal(cat.numpy(), wanted) for cat in cats)


class NetworkTouchedError(Exception):
    pass


@pytest.fixture
def no_network(monkeypatch):
    for name in ("socket", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, Mock(side_effect=NetworkTouchedError))


@pytest.mark.usefixtures("no_network")
def test_offline_opens_no_socket_and_says_what_to_type(monkeypatch):
    with pytest.raises(InputError, match="vitcli data get cifar10"):
        load_data(CIFAR, offline=True)
    monkeypatch.setenv("VITCLI_OFFLINE", "1")
    with pytest.raises(InputError):
        load_data(CIFAR)
    monkeypatch.setenv("VITCLI_OFFLINE", "0")
    with pytest.raises(NetworkTouchedError):
        load_data(CIFAR)


@pytest.mark.usefixtures("no_network")
def test_an_explicit_folder_is_the_only_place_searched(tmp_path, contents, monkeypatch):
    monkeypatch.setenv("VITCLI_DATA", str(write_batches(tmp_path / "a", contents)))
    assert len(load_data(CIFAR).train) == 200
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"cifar10 is not in .*empty"):
        load_data(CIFAR, data_dir=tmp_path / "empty")


@pytest.mark.parametrize("part", ["safetensors", "json"])
@pytest.mark.parametrize("damage", [lambda b: b[:-9] + b"!" + b[-8:], lambda b: b[:50]])
def test_a_damaged_cache_is_rebuilt(tmp_path, contents, cache, part, damage):
    root, messages = write_batches(tmp_path / "a", contents), []
    first = load_data(CIFAR, data_dir=root)
    (path,) = (cache / "arrays").glob(f"*.{part}")
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert conftest.same(first, load_data(CIFAR, data_dir=root, on_message=messages.append))
    assert any("is damaged" in text for text in messages)
    assert path.read_bytes() == good


def test_a_cache_that_cannot_be_written_costs_no_run(tmp_path, contents, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path / "file" / "cache"))
    messages: list[str] = []
    root = write_batches(tmp_path / "a", contents)
    assert len(load_data(CIFAR, data_dir=root, on_message=messages.append).train) == 200
    assert any("cannot be written" in text for text in messages)


def test_resize_keeps_the_order_and_doubles_exactly(tmp_path, contents):
    root = write_batches(tmp_path / "a", contents)
    native = load_data(CIFAR, data_dir=root)
    double = load_data(DataSpec(name="cifar10", resize=64), data_dir=root)
    assert torch.equal(native.train.labels, double.train.labels)
    assert torch.equal(fitted(native.train.pixels, (64, 64)), double.train.pixels)
    inner = F.interpolate(native.train.pixels.double(), scale_factor=2, mode="bilinear")
    assert_close(double.train.pixels.double(), inner.round(), atol=0, rtol=0)
    assert double.mean == channel_stats(double.train.pixels)[0]


def test_the_validation_split_is_fixed_balanced_and_exact(tmp_path, tiny_batches, contents):
    spec = DataSpec(name="cifar10", val_split=37)
    one = load_data(spec, data_dir=write_batches(tmp_path / "a", contents))
    other = load_data(spec, data_dir=conftest.write_class_folders(tmp_path / "b", tiny_batches))
    assert torch.equal(one.val.pixels, other.val.pixels)
    assert (len(one.train), len(one.val)) == (163, 37)
    assert sorted(torch.bincount(one.val.labels).tolist()) == [3] * 3 + [4] * 7
    whole = load_data(CIFAR, data_dir=tmp_path / "a")
    parts = (one.train, one.val)
    pixels, labels = (torch.cat([getattr(p, n) for p in parts]) for n in ("pixels", "labels"))
    assert data_hash([in_order(Images(pixels, labels))]) == data_hash([whole.train])
    assert one.data_hash == whole.data_hash
    assert one.mean == whole.mean


def test_a_share_of_the_training_images_is_held_out_and_counted_before_they_are_read(pictures):
    spec = DataSpec(name=f"imagefolder:{pictures}", val_split=0.26)
    data, count = load_data(spec), load_data(spec.replace(val_split=21))
    assert (len(data.train), len(data.val)) == (59, 21)
    assert torch.equal(data.val.pixels, count.val.pixels)
    info = describe_data(spec)
    assert (info.num_train, info.num_val) == (59, 21)
    few = DataSpec(name=f"imagefolder:{pictures}", val_split=0.001)
    assert len(load_data(few).val) == 1


@pytest.mark.parametrize("value", [1.5, -0.1, "0.2", True])
def test_a_validation_split_is_a_whole_number_or_a_share(value):
    with pytest.raises(ValidationError):
        DataSpec(val_split=value)
    assert repr(DataSpec(val_split=20.0).val_split) == "20"


@pytest.mark.parametrize(
    ("counts", "count", "shares"),
    [((70, 35, 15), 19, [11, 6, 2]), ((70, 35, 15), 24, [14, 7, 3]), ((3, 1, 96), 50, [2, 0, 48])],
)
def test_each_class_gives_its_share(counts, count, shares):
    images = images_of(counts)
    kept, held = hold_out(images, count)
    assert torch.bincount(held.labels, minlength=3).tolist() == shares
    smaller = hold_out(images, count - 5)[1]
    assert set(smaller.pixels.flatten().tolist()) < set(held.pixels.flatten().tolist())
    labelled = keep_labels(kept, 3)[0]
    assert not set(labelled.pixels.flatten().tolist()) & set(held.pixels.flatten().tolist())


@pytest.mark.parametrize("count", [7, 40, 123])
def test_of_equal_classes_the_same_images_are_held_out_as_ever(count):
    """Committed results and their hashes depend on them: one image of each class in each round."""
    rounds = torch.arange(10 * 20).view(10, 20).T.flatten()
    held = hold_out(images_of([20] * 10), count)[1]
    assert torch.equal(held.pixels.flatten(), rounds[:count].sort().values.to(torch.uint8))


def images_of(counts: Sequence[int]) -> Images:
    """Images of one pixel, numbered; ``counts`` images of each class, in canonical order."""
    pixels = torch.arange(sum(counts), dtype=torch.uint8).view(-1, 1, 1, 1)
    return Images(pixels, torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_data_set_is_canonical_and_described_without_drawing_it(
    name, here, monkeypatch
):
    monkeypatch.setattr(load, "NUM_GENERATED", (120, 40))
    data = load_data(DataSpec(name=name, val_split=30))
    assert data.data_hash == load_data(DataSpec(name=name)).data_hash
    monkeypatch.setattr(f"vitcli.core.generated.{name}.draw", None)
    info = describe_data(DataSpec(name=name, val_split=30))
    facts = (data.img_size, data.in_chans, data.class_names, len(data.train), len(data.test))
    assert facts == (info.img_size, info.in_chans, info.class_names, info.num_train, info.num_test)


def test_the_labels_are_balanced_and_nested():
    images = images_of([10] * 4)
    labelled, everything = keep_labels(images, 12)
    assert torch.bincount(labelled.labels).tolist() == [3, 3, 3, 3]
    kept = [{*keep_labels(images, count)[0].pixels.flatten().tolist()} for count in (4, 12, 20)]
    assert kept[0] < kept[1] < kept[2]
    assert everything.labels.tolist() == [-1] * 40
    for count in (3, 41):
        with pytest.raises(ConfigError, match=r"data\.labels"):
            keep_labels(images, count)


def test_a_held_out_image_does_not_change_which_images_are_labelled(here, monkeypatch):
    monkeypatch.setattr(load, "NUM_GENERATED", (600, 120))
    whole = load_data(DataSpec(labels=30))
    split = load_data(DataSpec(labels=30, val_split=100))
    assert torch.equal(whole.train.pixels, split.train.pixels)
    assert len(split.all_train) == len(whole.all_train) - 100
    assert describe_data(DataSpec(labels=30)).num_train == 30
    monkeypatch.setitem(TASKS, "classify", replace(TASKS["classify"], uses_labels=False))
    with pytest.raises(ValueError, match=r"data\.labels"):
        ExperimentSpec(data=DataSpec(labels=30))


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
    assert written == {root / conftest.ARCHIVE}


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
        files[split] = conftest.batch(pixels, list(range(100)), "fine_labels")
        monkeypatch.setattr(reader, f"{split}_list", [[split, md5(files[split])]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": md5(files["meta"])})
    (tmp_path / "cifar-100-python").mkdir()
    for name, content in files.items():
        (tmp_path / "cifar-100-python" / name).write_bytes(content)
    data = load_data(DataSpec(name="cifar100"), data_dir=tmp_path)
    assert (data.num_classes, len(data.train)) == (100, 100)
    assert data.class_names[0] == "apple"
    assert data.class_names[-1] == "worm"


def read_depths(root: Path, files: Sequence[str], pictures: Sequence[str]) -> Tensor:
    missing = [path for path in pictures if f"{path}.depth" not in files]
    if missing:
        raise InputError(f"no depth of {missing[0]}")
    return torch.tensor([[int(Path(f"{path}.depth").read_text())] for path in pictures])


def test_a_row_reads_another_kind_of_files(cache, root, monkeypatch):
    row = ExtraReader(
        is_own=lambda name: name.endswith(".depth"),
        read=read_depths,
        random=lambda count, generator: torch.zeros(count, 1),
    )
    monkeypatch.setitem(EXTRAS, "depth", row)
    spec = DataSpec(name=f"imagefolder:{root}")
    for picture in root.rglob("*.png"):
        Path(f"{picture}.depth").write_text(picture.stem.rpartition("-")[2])
    for _ in range(2):  # the second time from the cache
        images = load_data(spec, extras=["depth"]).train
        numbers = [int(Path(name).stem.rpartition("-")[2]) for name in images.names]
        assert images.extra["depth"][:, 0].tolist() == numbers
    next(root.rglob("*.depth")).unlink()
    notes: list[str] = []
    assert not load_data(spec, on_message=notes.append).train.extra
    assert any("depths are not used" in note for note in notes)
    with pytest.raises(InputError, match="no depth of"):
        load_data(spec, extras=["depth"])


def test_the_hash_of_images_without_captions_is_that_of_earlier_versions():
    images = Images(torch.arange(48, dtype=torch.uint8).view(4, 3, 2, 2), torch.arange(4))
    wanted = "637a7c23709865a856999caa116e3ea29f8c0b919b6326714474ef1eb8480769"
    assert data_hash([images]) == wanted
    described = [replace(images, extra={"caption": torch.full((4, 1), each)}) for each in (97, 98)]
    assert len({data_hash([each]) for each in (images, *described)}) == 3


def test_equal_pictures_are_sorted_by_their_captions():
    pixels, labels = torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)
    captions = torch.tensor([[98], [97]], dtype=torch.uint8)
    both = (Images(pixels, labels, {"caption": each}) for each in (captions, captions.flip(0)))
    one, other = (in_order(images).extra["caption"] for images in both)
    assert one.equal(other)
