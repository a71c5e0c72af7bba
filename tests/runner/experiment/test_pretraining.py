"""``pretrain`` in an experiment: its fields, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitcli.core.spec import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import config_hash, load_experiment

FIRST = {"pretrain.train.epochs": 1, "pretrain.train.batch_size": 16, "pretrain.optim.lr": 1e-3}


def test_an_experiment_gives_the_fields(tiny):
    Path("first.yaml").write_text(
        "question: x\ndata: {name: scenes, augment: {flip: random}}\n"
        "optim: {lr: 0.5}\ntrain: {epochs: 3}\n"
    )
    changes = {"pretrain.experiment": "./first.yaml", "pretrain.train.batch_size": 8}
    spec = load_experiment(str(tiny), changes).spec
    assert spec.pretrain is not None
    assert (spec.pretrain.optim.lr, spec.pretrain.train.epochs) == (0.5, 3)
    assert (spec.pretrain.train.batch_size, spec.pretrain.augment.flip) == (8, "random")
    first = spec.pretraining
    assert first is not None
    assert (first.model, first.data.name, first.seed) == (spec.model, spec.data.name, spec.seed)
    assert config_hash(spec) != config_hash(load_experiment(str(tiny)).spec)


@pytest.mark.parametrize("uses_labels", [True, False])
def test_only_a_task_with_labels_is_limited_to_the_labelled_images(tiny, monkeypatch, uses_labels):
    spec = load_experiment(str(tiny), FIRST | {"data.labels": 20}).spec
    monkeypatch.setitem(TASKS, "classify", replace(TASKS["classify"], uses_labels=uses_labels))
    first = spec.pretraining
    assert first is not None
    assert first.data.labels == (20 if uses_labels else None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pretrain.experiment": "nowhere"}, "no experiment is called 'nowhere'"),
        ({"pretrain.experiment": 3}, "must name an experiment, got 3"),
        ({"pretrain.experiment": "ablation-quickstart"}, "a study, not an experiment"),
        ({"pretrain.train.epoch": 3}, "did you mean 'epochs'"),
        ({"pretrain.train.init": "x"}, "a pre-training starts from random weights"),
        ({"pretrain.train.epochs": 1, "train.init": "x"}, "starts from 'pretrain'"),
        ({"pretrain.optim.name": "muon", "model.depth": 0}, "muon takes the matrices"),
    ],
)
def test_a_wrong_pre_training_is_refused(tiny, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        load_experiment(str(tiny), changes)
