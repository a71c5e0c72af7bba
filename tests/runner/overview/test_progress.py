"""The progress of a folder: which runs are read, what has ended, and the time left."""

from unittest.mock import patch

import pytest
import yaml

from tests.fabricated import STUDY, make_run, make_study_folder, record
from vitcli.runner.engines.drivers import join_drivers
from vitcli.runner.overview import progress
from vitcli.runner.overview.progress import Watcher
from vitcli.runner.run.folder import RUNS, RunDir

pytestmark = pytest.mark.usefixtures("here")


def test_the_time_left_of_a_short_try_counts_its_batches():
    """2 batches of 100 of the 2,000 images at 1,000 a second."""
    make_study_folder({"full/seed0": "running"})
    config = STUDY / "full/seed0/config.yaml"
    fields = yaml.safe_load(config.read_text())
    fields["train"] |= {"limit_batches": 2, "batch_size": 100}
    config.write_text(yaml.safe_dump(fields))
    with RunDir(STUDY / "full/seed0").lock():
        assert Watcher(STUDY).read().seconds_left == pytest.approx(3 * 0.2)


def test_a_study_has_ended_when_every_trial_has_a_result():
    states = {"full/seed0": "finished", "no-ffn/seed0": "diverged", "no-ffn/seed1": "missing"}
    make_study_folder(states, saved=("no-ffn/seed1",))
    assert Watcher(STUDY).read().has_ended
    make_study_folder(states)
    assert not Watcher(STUDY).read().has_ended


@patch.object(progress, "read_record", side_effect=progress.read_record)
def test_only_changed_runs_are_read_again(read):
    make_study_folder({"full/seed0": "finished", "no-ffn/seed0": "running"})
    watcher = Watcher(STUDY)
    for _ in range(2):
        watcher.read()
        assert read.call_count == 2
    RunDir(STUDY / "no-ffn/seed0").set_metrics([record(epoch, 0.9) for epoch in range(1, 5)])
    trial = next(each for each in watcher.read().trials if each.name == "no-ffn/seed0")
    assert trial.epochs == 4
    assert read.call_count == 3


def test_runs_outside_a_study_are_shown_by_folder():
    make_run(10)
    make_run(2)
    make_run(0, folder=RUNS / "pets").path.joinpath("config.yaml").write_text("a: [")
    found = Watcher(RUNS).read()
    assert [(trial.name, trial.state) for trial in found.trials] == [
        ("pets", "damaged"),
        *((f"quickstart/train/seed{seed}", "finished") for seed in (2, 10)),
    ]
    assert not found.is_study
    assert Watcher(RUNS / "pets").read().name == "pets"


def test_a_search_between_two_trials_has_not_ended():
    make_study_folder({"full/seed0": "finished"})
    watcher = Watcher(STUDY)
    with join_drivers(STUDY):
        assert (watcher.read().has_ended, watcher.read().is_running) == (False, True)
    assert (watcher.read().has_ended, watcher.read().is_running) == (True, False)
