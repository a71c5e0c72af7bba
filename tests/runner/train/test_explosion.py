"""A loss that explodes and stays finite is told, kept in the record, and never told wrongly."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import commands
from tests.runner.train.conftest import continue_run, stops_after, train
from vitcli.core.objectives.classify import EXPLODED, Classify
from vitcli.core.spec import TASKS
from vitcli.plugin import load_target
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

TRIALS = Path(__file__).parents[3] / "experiments/results/trials"
WARNING = "the loss has exploded: its mean over an epoch is above 3 times that of equal guesses"


@contextmanager
def loss_above(amount: float) -> Iterator[None]:
    original = Classify.losses

    def losses(self, batch):
        found = original(self, batch)
        return found | {"loss": found["loss"] + amount}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classify, "losses", losses)
        yield


def test_a_loss_that_explodes_is_told_once_and_kept(tiny, here):
    with loss_above(1e6):
        _, out, talk = commands.vitcli("train", tiny, "-o", "run", "--epochs", 2)
    warning = read_record(RunDir(here / "run")).result["warning"]
    assert warning.startswith(f"{WARNING} (0.69)")
    assert f"warning: {warning}" in " ".join(out.split())
    assert " ".join(talk.split()).count(f"warning: {warning}") == 1


def test_a_resumed_training_keeps_what_was_told_before(tiny, here):
    with loss_above(3), stops_after(6):
        train(tiny, "run")
    assert continue_run(RunDir(here / "run")).result["warning"].startswith(WARNING)


def test_a_calm_training_has_no_warning(calm):
    assert "warning" not in read_record(calm).result


def test_no_committed_trial_would_be_told():
    """All have ten classes. The rule begins at twice the largest loss or above."""
    lines = [line for path in TRIALS.glob("*/*.jsonl") for line in path.read_text().splitlines()]
    results = [json.loads(line)["record"]["result"] for line in lines]
    shares = [each["train_loss"] / math.log(10) for each in results if each.get("train_loss")]
    assert len(shares) > 300
    assert max(shares) < EXPLODED / 2


def test_a_loss_with_other_parts_is_not_compared_with_guessing():
    for name, row in TASKS.items():
        task = load_target(row.build)
        if isinstance(task, type) and issubclass(task, Classify):
            assert task.minimises_cross_entropy == (row.reports == ("loss", "accuracy")), name
