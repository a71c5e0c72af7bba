"""Families, sizes and pre-trainings of an experiment."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import FAMILIES, TASKS
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.experiment.resolve import fit_to_data

LARGEST = {"resnet18": 11_173_962}
"""Parameters of families of one size; all others are small."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_typed_over_an_experiment_and_takes_other_images(family):
    base = "cifar10-swin" if family == "vit" else "cifar10-vit"
    before, change = load_experiment(base), {"model.family": family}
    after = load_experiment(base, change)
    assert after.changed
    assert after.note.startswith(f"model.family={family} replaces the experiment's model by a ")
    assert after.spec.replace(model=before.spec.model) == before.spec, "the rest stays"
    module = new_module(fit_to_data(after.spec, describe_data(after.spec.data)))
    assert count_parameters(module) <= LARGEST.get(family, 400_000)
    assert module(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    sizes = {"model.img_size": [28, 28], "model.in_chans": 1, "model.num_classes": 3}
    other = load_experiment(base, change | sizes).spec
    assert new_module(other)(torch.randn(2, 1, 28, 28)).shape == (2, 3)
    again = load_experiment("cifar10-vit", {"model.family": "vit"})
    assert (again.spec, again.note) == (load_experiment("cifar10-vit").spec, "")


@pytest.mark.parametrize(
    ("fields", "facts", "hint"),
    [
        ({}, {"img_size": (30, 40)}, "-s data.resize=[28,40] or -s data.resize=[32,40]"),
        ({"model.patch_size": 48}, {"img_size": (1020, 1020)}, "-s data.resize=1008"),
        ({"model.patch_size": 8}, {"img_size": (3, 30)}, "-s data.resize=[8,24] or -s data.resiz"),
        ({"model.img_size": [40, 48]}, {}, "-s data.resize=[40,48]"),
        ({}, {"in_chans": 10**9}, "model.in_chans: "),
        ({"data.mean": [0.5]}, {"in_chans": 3}, "data.mean has 1 value for 3 channels"),
    ],
)
def test_sizes_that_fit_the_patches_are_named(fields, facts, hint):
    spec = load_experiment("quickstart", fields).spec
    found = replace(describe_data(spec.data), **facts)
    with pytest.raises(ConfigError) as caught:
        fit_to_data(spec, found)
    assert hint in str(caught.value)
    assert ("data.resize" in str(caught.value)) == ("in_chans" not in facts)
    for setting in re.findall(r"data.resize=(\S+)", str(caught.value)):
        changes = {"data.resize": yaml.safe_load(setting)}
        size = load_experiment("quickstart", changes).spec.data.resize
        fit_to_data(spec, replace(found, img_size=size))


@pytest.mark.plugin("mae")
def test_a_field_of_the_task_that_does_not_fit_the_model_is_called_by_its_name():
    spec = load_experiment("quickstart", {"task.name": "mae", "task.mask_ratio": 0.999}).spec
    with pytest.raises(ConfigError, match=r"^task\.mask_ratio: 0\.999 masks 64 of 64"):
        fit_to_data(spec, describe_data(spec.data))


FIRST = {"pretrain.train.epochs": 1, "pretrain.train.batch_size": 16, "pretrain.optim.lr": 1e-3}


def test_an_experiment_gives_the_fields(tiny):
    Path("first.yaml").write_text(
        "question: x\ndata: {name: scenes, augment: {flip: random}}\n"
        "optim: {lr: 0.5}\ntrain: {epochs: 3}\n"
    )
    changes = {"pretrain.experiment": "./first.yaml", "pretrain.train.batch_size": 8}
    spec = load_experiment(str(tiny), changes).spec
    assert (spec.pretrain.optim.lr, spec.pretrain.train.epochs) == (0.5, 3)
    assert (spec.pretrain.train.batch_size, spec.pretrain.augment.flip) == (8, "random")
    first = spec.pretraining
    assert (first.model, first.data.name, first.seed) == (spec.model, spec.data.name, spec.seed)
    assert config_hash(spec) != config_hash(load_experiment(str(tiny)).spec)
    Path("plain.yaml").write_text("question: x\ntrain: {epochs: 3}\n")
    plain = load_experiment(str(tiny), {"pretrain.experiment": "./plain.yaml"}).spec
    assert (plain.pretrain.augment.flip, plain.data.augment.flip) == ("none", "random")


@pytest.mark.parametrize("uses_labels", [True, False])
def test_only_a_task_with_labels_is_limited_to_the_labelled_images(tiny, monkeypatch, uses_labels):
    spec = load_experiment(str(tiny), FIRST | {"data.labels": 20}).spec
    monkeypatch.setitem(TASKS, "classify", replace(TASKS["classify"], uses_labels=uses_labels))
    first = spec.pretraining
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
