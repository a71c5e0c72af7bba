"""Named data sets: what is loaded, from where, and what the cache keeps."""

import socket
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.testing import assert_close

from tests.runner.data.conftest import (
    CIFAR,
    NAMES,
    in_order,
    same,
    write_archive,
    write_batches,
    write_class_folders,
)
from vitcli.core.data.source import Images, channel_stats
from vitcli.core.spec import GENERATED, TASKS, DataSpec, ExperimentSpec
from vitcli.runner.data.arrays import data_hash, fitted, hold_out, keep_labels
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("cache")


def test_batches_archive_and_class_folders_give_the_same_arrays(tmp_path, tiny_batches, contents):
    batches = load_data(CIFAR, data_dir=write_batches(tmp_path / "a", contents))
    archive = load_data(CIFAR, data_dir=write_archive(tmp_path / "b", contents))
    folders = load_data(CIFAR, data_dir=write_class_folders(tmp_path / "c", tiny_batches))
    assert same(batches, archive)
    assert same(batches, folders)
    assert batches.mean == folders.mean
    assert batches.class_names == tuple(NAMES)
    assert batches.train.pixels.shape == (200, 3, 32, 32)
    assert batches.train.labels.tolist() == sorted(batches.train.labels.tolist())
    wanted = tiny_batches["test_batch"][0][tiny_batches["test_batch"][1].index(3)]
    cats = batches.test.pixels[batches.test.labels == NAMES.index("cat")]
    assert any(np.array_equal(cat.numpy(), wanted) for cat in cats)


class NetworkTouchedError(Exception):
    pass


@pytest.fixture
def no_network(monkeypatch):
    def touched(*_: object, **__: object):
        raise NetworkTouchedError

    monkeypatch.setattr(socket, "socket", touched)
    monkeypatch.setattr(socket, "getaddrinfo", touched)
    monkeypatch.setattr(socket, "create_connection", touched)


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
    assert same(first, load_data(CIFAR, data_dir=root, on_message=messages.append))
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
    assert double.img_size == (64, 64)
    assert torch.equal(native.train.labels, double.train.labels)
    assert torch.equal(fitted(native.train.pixels, (64, 64)), double.train.pixels)
    inner = torch.nn.functional.interpolate(
        native.train.pixels.double(), scale_factor=2, mode="bilinear"
    )
    assert_close(double.train.pixels.double(), inner.round(), atol=0, rtol=0)
    assert double.mean == channel_stats(double.train.pixels)[0]


def test_the_validation_split_is_fixed_balanced_and_exact(tmp_path, tiny_batches, contents):
    spec = DataSpec(name="cifar10", val_split=37)
    one = load_data(spec, data_dir=write_batches(tmp_path / "a", contents))
    other = load_data(spec, data_dir=write_class_folders(tmp_path / "b", tiny_batches))
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
    data = load_data(DataSpec(name=name, val_split=100))
    assert data.data_hash == load_data(DataSpec(name=name)).data_hash
    monkeypatch.setattr(f"vitcli.core.generated.{name}.draw_splits", None)
    info = describe_data(DataSpec(name=name, val_split=100))
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
    whole = load_data(DataSpec(labels=30))
    split = load_data(DataSpec(labels=30, val_split=100))
    assert torch.equal(whole.train.pixels, split.train.pixels)
    assert len(split.all_train) == len(whole.all_train) - 100
    assert describe_data(DataSpec(labels=30)).num_train == 30
    monkeypatch.setitem(TASKS, "classify", replace(TASKS["classify"], uses_labels=False))
    with pytest.raises(ValueError, match=r"data\.labels"):
        ExperimentSpec(data=DataSpec(labels=30))
