"""A training of a search: it sees no test image, and says so in its files."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import printed
from tests.runner.train import conftest
from vitcli.core.data.source import Images
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.verify import verify_run

RUN = Path("run")


class Poison:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a test image was read ({name})")

    def __len__(self) -> int:
        raise AssertionError("the test images were counted")


def poisoned(spec, **options) -> Any:
    poison: Images = Poison()  # type: ignore[assignment]
    return dataclasses.replace(load_data(spec, **options), test=poison)


def train(tiny, load=poisoned, **options):
    changes = {"data.val_split": 20, "train.epochs": 2}
    return conftest.train(tiny, RUN, changes, without_test=True, load=load, **options)


def test_no_test_image_is_read_and_no_test_score_is_written(tiny):
    done = train(tiny)
    assert done.result["num_test"] == 0
    assert done.result["val_accuracy"] == done.metrics[-1]["val_accuracy"]
    written = [*done.result, *(key for line in done.metrics for key in line)]
    assert not [key for key in written if key.startswith("test_")]
    assert not (RUN / "predictions.npz").exists()
    events = b"".join(path.read_bytes() for path in RUN.glob("events.*"))
    assert b"accuracy/val" in events
    assert b"accuracy/test" not in events
    assert b"test_accuracy" not in events
    meta = done.meta
    assert (meta["without_test"], meta["num_test"], meta["num_val"]) == (True, 0, 20)
    assert {verdict.state for verdict in verify_run(done.folder)} == {"ok"}
    assert not conftest.trains(train, tiny), "it is finished, although it has no test score"


def test_a_continued_training_still_reads_none_whoever_continues_it(tiny):
    with conftest.stops_after(3):
        train(tiny)
    done = conftest.continue_run(RunDir(RUN), load=poisoned)
    assert done.state == "finished"
    assert done.result["num_test"] == 0
    assert printed("train", "--resume", "run").startswith("val accuracy")


def test_a_training_without_any_split_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"data\.val_split is 0"):
        conftest.train(tiny, RUN, without_test=True)
    assert not RUN.exists()
