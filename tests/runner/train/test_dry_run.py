"""`vitcli train --dry-run`: the plan of a training in numbers."""

import itertools
from types import SimpleNamespace

import pytest

from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train import dry_run

SCENES = {"num_train": 10_000, "num_val": 0, "num_test": 2_000}


@pytest.fixture
def clock(monkeypatch) -> None:
    """A second passes between two looks at the clock, such as in a step."""
    seconds = itertools.count()
    monkeypatch.setattr(dry_run, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))


def costs_of(tiny, **changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    experiment = load_experiment(str(tiny), named)
    return dry_run.dry_run(experiment, dry_run.Request())
