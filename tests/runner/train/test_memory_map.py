"""Pixels that stay in a memory map give the bits of pixels in memory."""

import pytest
import torch

from tests.same_run import assert_same_run
from tests.task_table import NAMES, TinyTask, row_of
from vitcli.core.data.source import Images
from vitcli.core.data.stored import AHEAD, StoredPixels, joined
from vitcli.core.spec import TASKS, DataSpec
from vitcli.runner.data import arrays
from vitcli.runner.data.load import load_data
from vitcli.runner.train.start import Request, resume_experiment, start


@pytest.fixture
def mapped(monkeypatch):
    monkeypatch.setenv(arrays.MAP_VARIABLE, "1")


def test_a_resumed_training_has_the_same_bits(calm, stopped, mapped):
    experiment, path = resume_experiment(str(stopped.path))
    assert isinstance(load_data(experiment.spec.data).train.pixels, StoredPixels)
    start(experiment, Request(output=path, resume=True))
    assert_same_run(calm, stopped)


@pytest.mark.parametrize("name", NAMES)
def test_each_task_trains_on_a_memory_map(name, here, monkeypatch):
    monkeypatch.setitem(TASKS, NAMES[-1], row_of(NAMES[-1]))
    tiny = TinyTask(name, here)
    runs = [tiny.train("memory", {"train.epochs": 1})]
    monkeypatch.setenv(arrays.MAP_VARIABLE, "1")
    runs.append(tiny.train("map", {"train.epochs": 1}))
    assert_same_run(*runs, measures=())


@pytest.mark.parametrize(
    "fields", [{"val_split": 4}, {"folds": 4}, {"labels": 8}, {"resize": (8, 8)}]
)
def test_splits_are_the_same_in_a_memory_map(fields, pictures, mapped, monkeypatch):
    spec = DataSpec(name=f"imagefolder:{pictures}", **fields)
    own = load_data(spec, seed=1)
    monkeypatch.setenv(arrays.MAP_VARIABLE, "0")
    other = load_data(spec, seed=1)
    assert own.data_hash == other.data_hash
    for one, two in ((own.train, other.train), (own.test, other.test), (own.val, other.val)):
        if one is not None:
            assert isinstance(one.pixels, StoredPixels)
            assert one.pixels[:].equal(two.pixels)
            assert one.names == two.names
            assert one.pixels.flip(-1)[:].equal(two.pixels.flip(-1))


def test_batches_are_gathered_ahead_in_their_order(monkeypatch):
    base = torch.arange(60, dtype=torch.uint8).view(20, 1, 1, 3)
    pixels = StoredPixels(base).select(torch.arange(19, 1, -1))
    batches = [torch.tensor(rows) for rows in ([0, 5], [7, 7], [1, 17], [3, 2])]
    gathered = []
    original = StoredPixels.gather
    monkeypatch.setattr(
        StoredPixels, "gather", lambda self, rows: gathered.append(rows) or original(self, rows)
    )
    pixels.expect(iter(batches))
    for count, batch in enumerate(batches):
        assert pixels[batch].equal(base[19 - batch])
        assert len(gathered) >= min(len(batches), count + 1)
    assert len(gathered) == len(batches)
    assert AHEAD > 1
    pixels.expect(iter(batches))
    assert pixels[torch.tensor([4])].equal(base[[15]])  # not the expected one
    assert pixels[batches[0]].equal(base[19 - batches[0]])
    assert pixels[3].equal(base[16])
    assert joined(pixels, pixels)[18:].equal(pixels[:])
    assert len(Images(pixels, torch.zeros(18))[:4].pixels) == 4
