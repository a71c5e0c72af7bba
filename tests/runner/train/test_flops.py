"""The operations of a training: those of the trained module are those of a new one."""

from typing import Any

import pytest

from tests.core.specs import REQUIRED
from tests.core.trainings import data_set, experiment
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.train import flops
from vitcli.runner.train.build import build_training
from vitcli.runner.train.flops import count_operations

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two encoders": {"task": {"name": "dino"}},
    "recomputed": {"train": {"grad_checkpointing": True, "accumulate": 2, "ema_decay": 0.9}},
    "frozen": {"train": {"freeze": 1}},
    "in bf16": {"train": {"precision": "bf16"}},
    "drawn": {"model": {"attention": "performer"}},
    "in windows": {"model": {"family": "swin", **REQUIRED["swin"]}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_trained_module_is_counted_as_a_new_one(monkeypatch, case):
    spec = experiment(CASES[case])
    data = data_set()
    training = build_training(spec, filled_module(spec, data), data)
    next(training.run_epoch(0))
    batch = next(training.batches(0))
    counts = []
    for module in (None, training.module):
        monkeypatch.setattr(flops, "_counted", {})
        counts.append(count_operations(spec, batch, module))
    assert counts[0] == counts[1]
