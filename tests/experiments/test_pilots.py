"""Pilots: what a queue asks for, costs, logs and skips."""

import json
import sys
from argparse import Namespace
from functools import cache
from pathlib import Path

import pytest
import torch

from experiments.pilots import pilot
from vitcli.core.inspect.cost import forward_flops
from vitcli.core.models.image_model import ImageModel, build_model
from vitcli.core.spec import ExperimentSpec, ModelSpec, VitSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import DivergedError
from vitcli.runner.experiment.sizes import fit_to_data

QUEUE = Path(pilot.__file__).with_name("accuracy-per-compute.txt")
BUDGETS = {
    "cifar10-convnet": (0.6, 2e6),
    "cifar10-pocket": (2.4, 750e3),
    "speedrun-94": (2.4, 750e3),
    "cifar10-plain": (0.9, 1e6),
}
"""PFLOP and parameters that a pilot of an experiment may have."""
IMAGES = 45_000


def fitted(each: Namespace) -> ExperimentSpec:
    spec = pilot.experiment_of(each).spec
    return fit_to_data(spec, describe_data(spec.data))


@cache
def abstract(spec: ModelSpec) -> ImageModel:
    with torch.device("meta"):
        return build_model(spec)


@cache
def operations(spec: ModelSpec) -> int:
    return forward_flops(abstract(spec), (3, 32, 32))


@pytest.mark.ci
def test_the_queue_keeps_to_its_budgets_and_asks_nothing_twice():
    pilots = [*pilot.read_pilots(["--queue", str(QUEUE)])]
    assert len(pilots) >= 12
    assert len({(each.experiment, *each.changes) for each in pilots}) == len(pilots)
    for each in pilots:
        spec, (pflop, parameters) = fitted(each), BUDGETS[each.experiment]
        assert (spec.data.val_split, spec.seed) == (5000, 100)
        step = 3 * operations(spec.model)  # the backward pass counts twice
        assert step * spec.train.epochs * IMAGES / 1e15 <= pflop, each
        assert sum(p.numel() for p in abstract(spec.model).parameters()) <= parameters, each


def test_the_speedrun_spends_a_quarter_on_its_convolutions_at_most():
    (each,) = pilot.read_pilots(["speedrun-94"])
    spec = fitted(each).model
    assert isinstance(spec, VitSpec)
    assert (spec.attention, spec.ffn) == ("softmax", "gelu")
    stem = abstract(spec).get_submodule("patch_embed")
    assert sum(isinstance(part, torch.nn.Conv2d) for part in stem.modules()) <= 3
    assert 4 * forward_flops(stem, (3, 32, 32)) <= operations(spec)


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The experiments that a queue trains; ``diverges`` does."""
    names = []

    def train(experiment, request, **_):
        names.append(experiment)
        assert request.without_test
        assert request.data_dir == Path("cifar")
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(pilot, "start", train)
    monkeypatch.setattr(pilot, "experiment_of", lambda each: each.experiment)
    return names


def test_a_queue_continues_after_a_pilot_that_diverged_and_skips_what_is_logged(
    trained, tmp_path, monkeypatch
):
    queue, log = tmp_path / "queue.txt", tmp_path / "log.jsonl"
    queue.write_text(f"# two\none --log {log} -s a=1  # why\n\ntwo --log {log}\n")
    words = ["pilot", "--queue", str(queue), "--data-dir", "cifar"]
    monkeypatch.setattr(sys, "argv", words)
    pilot.main()
    first = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["changes"], each["val_accuracy"]) for each in first] == [
        (["a=1"], None),
        ([], None),
    ]
    assert first[0]["reason"] == "the loss is not finite"
    pilot.main()
    assert trained == ["one", "two"]
