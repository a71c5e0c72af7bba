"""A training that starts from a pre-training of its own."""

from pathlib import Path

import pytest
import torch

from tests.same_run import assert_same_run
from tests.stopping import stop_after
from vitcli.runner.errors import InputError, StoppedError
from vitcli.runner.evaluate.weights import encoder_weights, load_model
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import RunDir, list_runs
from vitcli.runner.train.start import Request, start

FIRST = {"pretrain.train.epochs": 1, "pretrain.train.batch_size": 16, "pretrain.optim.lr": 1e-3}


def train(tiny: Path, changes: dict, output: str, **options):
    return start(load_experiment(str(tiny), changes), Request(output=Path(output), **options))


def pretrained_runs() -> list[RunDir]:
    return list_runs(Path("runs/pretrained"))


def test_trainings_start_from_the_encoder_of_a_shared_pre_training(tiny, pictures):
    changes = FIRST | {"train.epochs": 0, "train.ema_decay": None}
    done = train(tiny, changes, "next")
    (first,) = pretrained_runs()
    given, taken = encoder_weights(first), load_model(done.run).state_dict()
    assert all(torch.equal(taken[name], given[name]) for name in given)
    assert done.run.read("meta.json")["pretrained"]["run"] == first.name
    assert done.result["pretrain_flops"] == first.read("result.json")["train_flops"] > 0
    again = train(tiny, changes | {"optim.lr": 0.1}, "again")
    assert len(pretrained_runs()) == 1
    assert again.run.read("meta.json")["pretrained"] == done.run.read("meta.json")["pretrained"]
    train(tiny, changes | {"pretrain.optim.lr": 2e-3}, "other")
    assert len(pretrained_runs()) == 2
    next(pictures.rglob("*.png")).unlink()
    with pytest.raises(InputError, match="was trained on"):
        train(tiny, changes, "other images")
    assert first.exists


@pytest.mark.parametrize("steps", [3, 8])
def test_it_is_killed_in_either_part_and_continues_to_the_same_bits(tiny, monkeypatch, steps):
    calm = train(tiny, FIRST, "calm")
    for run in pretrained_runs():
        run.path.rename(f"{run.path}-calm")
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(StoppedError):
            train(tiny, FIRST, "stopped", resume=True)
    again = train(tiny, FIRST, "stopped", resume=True)
    assert again.result["test_accuracy"] == calm.result["test_accuracy"]
    assert_same_run(calm.run, again.run)
