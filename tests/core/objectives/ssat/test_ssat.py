"""Classification and reconstruction in one training, of the same or of other images."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.trainings import data_set, new_task
from vitcli.core.data.source import DataSet
from vitcli.core.objectives.mae.mae import draw_noise
from vitcli.core.objectives.ssat import ssat
from vitcli.core.objectives.ssat.ssat import Ssat

SSAT = {"task": {"name": "ssat", "class_weight": 0.25}}


def with_labels(count: int = 24) -> DataSet:
    """Return a data set with labels for some of its 64 training images."""
    data = data_set()
    hidden = replace(data.train, labels=torch.full_like(data.train.labels, -1))
    return replace(data, train=data.train[:count], unlabelled=hidden)


def task(batch_size: int = 8, **augment) -> Ssat:
    found = new_task(SSAT | {"augment": augment, "train": {"batch_size": batch_size}})
    assert isinstance(found, Ssat)
    return found


@pytest.mark.parametrize("data", [data_set(), with_labels()], ids=["all labels", "few labels"])
def test_the_loss_is_the_weighted_sum_of_those_of_both_tasks(data):
    both = task()
    batch = next(both.batches(data, 0))
    found = both.losses(batch)
    classify, mae = new_task({}), new_task({"task": {"name": "mae"}})
    masked = {"images": batch["others"], "noise": batch["noise"]}
    alone = classify.losses(batch), mae.losses(masked)
    assert_close(found["loss"], 0.25 * alone[0]["loss"] + 0.75 * alone[1]["loss"])
    assert_close(found["masked_mse"], alone[1]["loss"].detach())
    assert torch.equal(found["accuracy"], alone[0]["accuracy"])


def test_the_reconstructed_images_are_flipped_but_not_cropped_erased_or_mixed():
    strong = {"crop_padding": 4, "erasing": 1.0, "mixup": 1.0, "cutmix": 1.0}
    data, batch = data_set(), next(task(flip="random", **strong).batches(data_set(), 0))
    flipped = next(task(flip="random").batches(data, 0))["images"]
    assert torch.equal(batch["others"], flipped)
    assert not torch.equal(flipped, next(task().batches(data, 0))["images"])
    assert not torch.isclose(batch["images"], flipped).flatten(1).all(1).any()


def index_of_others(both: Ssat, data: DataSet, epochs: int) -> Tensor:
    """Return the indices of the reconstructed images, as far as the epochs' batches use them."""
    used = len(data.train) // both.spec.train.batch_size * both.spec.train.batch_size
    return torch.cat([both.rows(data, epoch)["others.index"][:used] for epoch in range(epochs)])


@pytest.mark.parametrize(("labels", "batch_size"), [(24, 8), (20, 8), (64, 16)])
def test_every_pass_contains_every_image_once(labels, batch_size):
    """Epochs of 24, 16 and 64 of 64 images: passes begin inside an epoch."""
    index = index_of_others(task(batch_size), with_labels(labels), 9)
    passes = [part for part in index.split(64) if len(part) == 64]
    assert len(passes) >= 2
    assert all(torch.equal(part.sort().values, torch.arange(64)) for part in passes)
    assert not torch.equal(passes[0], passes[1])


def test_a_pass_is_drawn_once_and_forgotten_afterwards(monkeypatch):
    """Passes are long and epochs short, if there are few labels."""
    drawn, both, data = [], task(), with_labels()
    monkeypatch.setattr(ssat, "draw_noise", lambda *key: drawn.append(key[-1]) or draw_noise(*key))
    for epoch in range(12):
        both.rows(data, epoch)
    assert drawn == [0, 1, 2, 3, 4]
    assert both._passes.keys() <= {3, 4}


def test_the_other_images_are_functions_of_seed_and_epoch():
    """A resumed training has seen no earlier epoch."""
    changes = {"crop_padding": 2, "flip": "random"}
    data, first, resumed = with_labels(), task(**changes), task(**changes)
    all_epochs = [list(first.batches(data, epoch)) for epoch in range(4)]
    for batch, again in zip(all_epochs[3], resumed.batches(data, 3), strict=True):
        assert batch.keys() == again.keys()
        assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert not torch.equal(all_epochs[0][0]["others"], all_epochs[3][0]["others"])


def test_the_other_images_come_from_the_whole_training_set():
    """Without augmentation they are the normalised pixels of their rows."""
    both, data = task(), with_labels()
    rows, batch = both.rows(data, 1), next(both.batches(data, 1))
    wanted = data.normalize(data.all_train.pixels[rows["others.index"][:8]])
    assert_close(batch["others"], wanted)
