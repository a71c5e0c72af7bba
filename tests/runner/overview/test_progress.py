"""The progress of a folder: states, epochs and time left; unchanged files are not read again."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fabricated import make_run, record
from tests.fabricated_runs import STUDY, make_study_folder
from vitcli.runner.errors import InputError
from vitcli.runner.overview.progress import Watcher, find_watched
from vitcli.runner.run.folder import RUNS, RunDir
from vitcli.runner.run.record import TrialState
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import Options, StudyPlan
from vitcli.runner.study.run import write_plan

pytestmark = pytest.mark.usefixtures("here")
STATES = {
    "full/seed0": "finished",
    "no-ffn/seed0": "running",
    "full/seed1": "missing",
    "no-ffn/seed1": "missing",
}


def test_every_planned_trial_has_a_state():
    make_study_folder(STATES, saved=("full/seed1",))
    with RunDir(STUDY / "no-ffn/seed0").lock():
        found = Watcher(STUDY).read()
    assert {trial.name: trial.state for trial in found.trials} == STATES | {"full/seed1": "saved"}
    assert [*found.variants] == ["full", "no-ffn"]
    assert found.is_running
    assert not found.has_ended
    # 2,000 images at 1,000 a second: 3 epochs of the running trial, and 6 of one not begun.
    assert found.seconds_left == pytest.approx((3 + 6) * 2)
    alone = Watcher(STUDY).read()
    assert (alone.is_running, alone.seconds_left) == (False, None), "no process holds the lock"


def test_the_time_left_of_a_short_try_counts_its_batches():
    """2 batches of 100 of the 2,000 images at 1,000 a second."""
    make_study_folder({"full/seed0": "running"})
    config = STUDY / "full/seed0/config.yaml"
    fields = yaml.safe_load(config.read_text())
    fields["train"] |= {"limit_batches": 2, "batch_size": 100}
    config.write_text(yaml.safe_dump(fields))
    with RunDir(STUDY / "full/seed0").lock():
        assert Watcher(STUDY).read().seconds_left == pytest.approx(3 * 0.2)


def test_it_has_ended_when_every_trial_has_a_result():
    states = {"full/seed0": "finished", "no-ffn/seed0": "diverged", "no-ffn/seed1": "missing"}
    make_study_folder(states, saved=("no-ffn/seed1",))
    assert Watcher(STUDY).read().has_ended
    make_study_folder(states)
    assert not Watcher(STUDY).read().has_ended


def test_only_changed_files_are_read_again(monkeypatch):
    make_study_folder(STATES)
    read: list[str] = []
    for name in ("spec", "metrics"):
        original = getattr(RunDir, name)

        def counted(run, name=name, original=original):
            read.append(name)
            return original(run)

        monkeypatch.setattr(RunDir, name, counted)
    watcher = Watcher(STUDY)
    watcher.read()
    assert sorted(read) == ["metrics", "metrics", "spec", "spec"]
    watcher.read()
    assert len(read) == 4
    RunDir(STUDY / "no-ffn/seed0").set_metrics([record(epoch, 0.9) for epoch in range(1, 5)])
    trial = next(each for each in watcher.read().trials if each.name == "no-ffn/seed0")
    assert trial.epochs == 4
    assert read[4:] == ["metrics"]


def test_runs_outside_a_study_are_shown_by_folder():
    make_run(10)
    make_run(2)
    make_run(0, folder=RUNS / "pets").path.joinpath("config.yaml").write_text("a: [")
    found = Watcher(RUNS).read()
    assert [trial.name for trial in found.trials] == [
        "pets",
        "quickstart/train/seed2",
        "quickstart/train/seed10",
    ]
    assert [trial.state for trial in found.trials] == ["damaged", "finished", "finished"]
    assert not found.is_study
    assert Watcher(RUNS / "pets").read().name == "pets"


def test_names_mean_folders_under_runs():
    with pytest.raises(InputError, match="vitcli train"):
        find_watched(None)
    make_study_folder(STATES)
    assert find_watched(None) == find_watched("parts") == find_watched("runs/parts") == STUDY
    assert find_watched("parts/full") == STUDY / "full"
    make_run(0, folder=RUNS / "pets")
    assert find_watched(None) == RUNS / "pets"
    for name in ("nothing", ""):
        with pytest.raises(InputError, match="vitcli ablate"):
            find_watched(name)
    Path("empty").mkdir()
    with pytest.raises(InputError):
        find_watched("empty")


def test_the_plan_of_a_study_names_trials_that_are_saved():
    study = load_study("ablation-quickstart")
    states = {trial.folder: TrialState(state="missing") for trial in study.trials()}
    states["baseline/seed0"] = TrialState(state="finished", source="results")
    fields: dict[str, Any] = {"trials": [], "replaced": frozenset(), "rerun": (), "saved": None}
    fields |= {"names": (), "parameters": {}, "disk_bytes": 0}
    STUDY.mkdir(parents=True)
    write_plan(StudyPlan(study=study, root=STUDY, states=states, **fields), Options())
    found = {trial.name: trial for trial in Watcher(STUDY).read().trials}
    assert found["baseline/seed0"].state == "saved"
    assert found["baseline/seed1"].state == "missing"
    assert found["baseline/seed1"].planned == study.baseline.spec.train.epochs
