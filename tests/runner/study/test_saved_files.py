"""The files of saved trials: what a kill leaves, what a new seed changes, and older versions."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.runner.study.trials import LINES, ROOT, fabricate, save_all, states
from vitcli.runner.files import commit, sha256, to_hashed_json
from vitcli.runner.run import store
from vitcli.runner.run.store import read_lines, read_store
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.plan import plan_study
from vitcli.runner.study.run import save_results
from vitcli.runner.study.saved import SAVED, SavedTrials

JOIN = Path(__file__).parents[3] / ".ci/join_trials.py"


def accuracies() -> dict[str, float | None]:
    """Return variant -> accuracy of the saved trials of seed 0, whose predictions are checked."""
    found = {each.value["variant"]: each.check().record for each in read_store(SAVED)}
    return {name: record.result.test_accuracy for name, record in found.items()}


def write_as_before(path: Path) -> list[Path]:
    """Write the trials of a seed as vitcli 0.8 did; return the JSON files."""
    written = []
    for each in read_lines(path):
        target = path.parent / each.value["variant"] / f"{path.stem}-{each.key[:8]}.json"
        target.parent.mkdir(exist_ok=True)
        value = {name: content for name, content in each.value.items() if name != "format"}
        if value["predictions_sha256"]:
            np.savez_compressed(target.with_suffix(".npz"), **each.predictions())  # type: ignore[arg-type]
            value["predictions_sha256"] = sha256(target.with_suffix(".npz").read_bytes())
        target.write_bytes(to_hashed_json({"format": 1, **value}))
        written.append(target)
    path.unlink()
    path.with_suffix(".npz").unlink(missing_ok=True)
    return written


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_kill_while_saving_loses_no_saved_trial(study, monkeypatch, suffix, is_new):
    """It comes before the file with this suffix is written."""
    fabricate("no-norm", 0, 0.5)
    if not is_new:
        fabricate("full", 0, 0.75)
    save_all(study)
    before = accuracies()
    fabricate("full", 0, 0.25)

    def die(path: Path, content: bytes) -> None:
        if path.suffix == suffix:
            raise KeyboardInterrupt
        commit(path, content)

    plan = plan_study(study, ROOT, (), rerun=("full",))
    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            save_results(plan, SAVED, "full/seed0")
    assert accuracies() == before
    save_results(plan, SAVED, "full/seed0")
    assert accuracies() == {"no-norm": 0.5, "full": 0.25}


def test_a_saved_trial_stays_unless_it_is_trained_again(study):
    fabricate("full", 0, 0.75)
    save_all(study)
    before = {path: path.read_bytes() for path in SAVED.rglob("seed*")}
    fabricate("full", 0, 0.25)
    fabricate("full", 1, 0.25)
    save_all(study)
    assert {path: path.read_bytes() for path in before} == before
    assert len(read_store(SAVED)) == 2
    save_results(plan_study(study, ROOT, (), rerun=("full",)), SAVED, "full/seed0")
    assert [each.check().record.result.test_accuracy for each in read_lines(LINES)] == [0.25]


def test_the_files_of_an_earlier_version_are_read_beside_the_new_ones(study):
    fabricate("full", 0, 0.75)
    fabricate("no-norm", 0, state="diverged")
    save_all(study)
    whole = read_results(study, ROOT)
    (single, _) = write_as_before(LINES)
    fabricate("full", 1, 0.5)
    save_all(study)
    shutil.rmtree(ROOT)
    saved = SavedTrials(SAVED)
    assert read_results(study, ROOT, (), saved).rows[0].trials[0] == whole.rows[0].trials[0]
    assert list(states(study, saved).values()) == ["finished", "diverged", "finished", "missing"]
    fabricate("full", 0, 0.25)
    save_all(study)
    assert not LINES.exists(), "a saved trial is kept"
    save_results(plan_study(study, ROOT, (), rerun=("full",)), SAVED, "full/seed0")
    assert [each.check().record.result.test_accuracy for each in read_lines(LINES)] == [0.25]
    assert not single.exists()
    assert not single.with_suffix(".npz").exists()


def test_the_files_of_an_earlier_version_can_be_joined(study, monkeypatch):
    fabricate("full", 0, 0.75)
    fabricate("no-norm", 0, state="diverged")
    save_all(study)
    lines = sorted(LINES.read_text().splitlines())
    write_as_before(LINES)
    script = runpy.run_path(str(JOIN))
    monkeypatch.setattr("sys.argv", ["join_trials.py", str(SAVED)])
    script["main"]()
    script["main"]()
    assert sorted(LINES.read_text().splitlines()) == lines
    assert {path.name for path in SAVED.rglob("seed*")} == {"seed0.jsonl", "seed0.npz"}
