"""A training that starts from a pre-training of its own."""

from pathlib import Path

import pytest
import torch

from tests.runner.train.conftest import stops_after, train
from tests.same_run import assert_same_run
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import encoder_weights, load_model
from vitcli.runner.run.folder import RunDir, list_runs

FIRST = {"pretrain.train.epochs": 1, "pretrain.train.batch_size": 16, "pretrain.optim.lr": 1e-3}


def pretrained_runs() -> list[RunDir]:
    return list_runs(Path("runs/pretrained"))


def test_trainings_start_from_the_encoder_of_a_shared_pre_training(tiny, pictures):
    changes = FIRST | {"train.epochs": 0, "train.ema_decay": None}
    done = train(tiny, "next", changes)
    (first,) = pretrained_runs()
    given, taken = encoder_weights(first), load_model(done.run).state_dict()
    assert all(torch.equal(taken[name], given[name]) for name in given)
    assert done.run.read("meta.json")["pretrained"]["run"] == first.name
    assert done.result["pretrain_flops"] == first.read("result.json")["train_flops"] > 0
    again = train(tiny, "again", changes | {"optim.lr": 0.1})
    assert len(pretrained_runs()) == 1
    assert again.run.read("meta.json")["pretrained"] == done.run.read("meta.json")["pretrained"]
    train(tiny, "other", changes | {"pretrain.optim.lr": 2e-3})
    assert len(pretrained_runs()) == 2
    next(pictures.rglob("*.png")).unlink()
    with pytest.raises(InputError, match="was trained on"):
        train(tiny, "other images", changes)
    assert first.exists


@pytest.mark.parametrize("steps", [3, 8])
def test_it_is_killed_in_either_part_and_continues_to_the_same_bits(tiny, steps):
    calm = train(tiny, "calm", FIRST)
    for run in pretrained_runs():
        run.path.rename(f"{run.path}-calm")
    with stops_after(steps):
        train(tiny, "stopped", FIRST, resume=True)
    again = train(tiny, "stopped", FIRST, resume=True)
    assert again.result["test_accuracy"] == calm.result["test_accuracy"]
    assert_same_run(calm.run, again.run)
