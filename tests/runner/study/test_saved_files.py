"""The files of saved trials: what a kill leaves, what a new seed changes, and older versions."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.runner.study.test_saved import LINES, save_all, study, value_of
from tests.runner.study.test_states import ROOT, fabricate
from vitcli.runner.files import commit, sha256, to_hashed_json
from vitcli.runner.run import store
from vitcli.runner.run.store import read_lines, read_store
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.plan import plan_study
from vitcli.runner.study.run import save_results
from vitcli.runner.study.saved import SAVED, SavedTrials

__all__ = ["study"]


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
    found = {each.value["variant"]: each.check().record for each in read_store(SAVED)}
    assert {name: record.result.test_accuracy for name, record in found.items()} == (
        {"no-norm": 0.5} if is_new else {"no-norm": 0.5, "full": 0.75}
    )
    save_results(plan, SAVED, "full/seed0")
    assert value_of("full")["record"]["result"]["test_accuracy"] == 0.25
    assert value_of("no-norm")["record"]["result"]["test_accuracy"] == 0.5


def test_a_new_seed_changes_no_file_of_another(study):
    fabricate("full", 0, 0.75)
    save_all(study)
    before = {path: path.read_bytes() for path in SAVED.rglob("seed*")}
    fabricate("full", 1, 0.25)
    save_all(study)
    assert {path: path.read_bytes() for path in before} == before
    assert len(read_store(SAVED)) == 2


def test_the_files_of_an_earlier_version_are_read_beside_the_new_ones(study):
    fabricate("full", 0, 0.75)
    fabricate("no-norm", 0, state="diverged")
    save_all(study)
    whole = read_results(study, ROOT)
    (single, _) = write_as_before(LINES)
    shutil.rmtree(ROOT)
    fabricate("full", 1, 0.5)
    save_all(study)
    shutil.rmtree(ROOT)
    found = read_results(study, ROOT, (), SavedTrials(SAVED))
    assert found.rows[0].trials[0] == whole.rows[0].trials[0]
    assert [trial.state for row in found.rows for trial in row.trials] == [
        *("finished", "finished", "diverged", "missing"),
    ]
    fabricate("full", 0, 0.25)
    save_all(study)
    assert not LINES.exists(), "a saved trial is kept"
    save_results(plan_study(study, ROOT, (), rerun=("full",)), SAVED, "full/seed0")
    assert value_of("full")["record"]["result"]["test_accuracy"] == 0.25
    assert not single.exists()
    assert not single.with_suffix(".npz").exists()
