"""The files of saved trials: what a kill leaves, what a seed changes, older versions and damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runner.study.trials import LINES, ROOT, fabricate, save_all, write_study
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit, sha256, to_hashed_json
from vitcli.runner.run import store
from vitcli.runner.run.record import saved_record
from vitcli.runner.run.store import read_lines, read_store
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import plan_study
from vitcli.runner.study.run import save_results
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.table import read_document, to_json


def accuracies() -> dict[str, float | None]:
    """Return variant -> accuracy of the saved trials of seed 0, whose predictions are checked."""
    return {entry.value["variant"]: entry.check().test_score for entry in read_store(SAVED)}


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
    assert [entry.check().test_score for entry in read_lines(LINES)] == [0.25]
    LINES.write_bytes(LINES.read_bytes().replace(b"\n", b"\r\n"))
    assert [entry.check().test_score for entry in read_lines(LINES)] == [0.25], "git on Windows"


def test_the_files_of_an_earlier_version_are_read_beside_the_new_ones(study):
    fabricate("full", 0, 0.75)
    fabricate("no-norm", 0, state="diverged")
    save_all(study)
    whole = read_results(study, ROOT)
    (single, _) = write_as_before(LINES)
    shutil.rmtree(ROOT)
    assert read_results(study, ROOT, (), SavedTrials(SAVED)) == whole
    fabricate("full", 0, 0.25)
    save_all(study)
    assert not LINES.exists(), "a saved trial is kept"
    save_results(plan_study(study, ROOT, (), rerun=("full",)), SAVED, "full/seed0")
    assert accuracies() == {"full": 0.25, "no-norm": None}
    assert list(single.parent.glob("seed0-*")) == []


PREDICTIONS = LINES.with_suffix(".npz")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder with a study and one saved trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("saved"))
        study = write_study()
        fabricate("full", 0, 0.75)
        save_all(study)
        SavedTrials(SAVED).find_matches(study, study.trials(), {}, {})
    return folder


def forge(change: Callable[[dict], object]) -> Callable[[], object]:
    """Return a function that changes the saved trial and makes its hash again."""

    def write() -> None:
        value = json.loads(LINES.read_text())
        del value["sha256"]
        change(value)
        body = json.dumps(value)
        LINES.write_text(f'{body[:-1]}, "sha256": "{sha256(body.encode())}"}}\n')

    return write


def reverse_images() -> None:
    """Write predictions of the same accuracy in another order."""
    with np.load(PREDICTIONS) as archive:
        arrays = {name: array[::-1] for name, array in archive.items()}
    np.savez(PREDICTIONS, **arrays)


DAMAGES: dict[str, Callable[[], object]] = {
    "a forged accuracy": forge(lambda value: value["record"]["result"].update(test_accuracy=0.99)),
    "a forged number of images": forge(lambda value: value["record"]["result"].update(num_test=1)),
    "no sessions": forge(lambda value: value["record"].update(sessions=[])),
    "no configuration": forge(lambda value: value.pop("config")),
    "no hash of predictions": forge(lambda value: value.update(predictions_sha256=None)),
    "other predictions of the same accuracy": reverse_images,
    "another accuracy": lambda: LINES.write_text(LINES.read_text().replace("0.75", "0.85")),
    "cut short": lambda: LINES.write_bytes(LINES.read_bytes()[:-20]),
    "many brackets": lambda: LINES.write_text("[" * 100_000 + "\n"),
    "other predictions": lambda: PREDICTIONS.write_bytes(b"x"),
    "no predictions": PREDICTIONS.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_forged_trial_is_refused_by_name(made, here, damage):
    shutil.copytree(made, here, dirs_exist_ok=True)
    study = load_study("mine.yaml")
    DAMAGES[damage]()
    with pytest.raises(InputError, match=r"seed0\.(jsonl(:1)?|npz): (damaged|cannot be read)"):
        SavedTrials(SAVED).find_matches(study, study.trials(), {}, {})


def test_the_trials_of_version_1_0_0_are_written_as_they_were():
    entries = read_store(Path(__file__).parents[3] / SAVED)
    assert len(entries) > 500
    for entry in entries:
        record = saved_record(entry.value["record"], entry.value["config"], "")
        assert json.dumps(record.saved()) == json.dumps(entry.value["record"]), entry.place


DOCUMENTS = [
    path
    for path in (Path(__file__).parents[3] / "experiments/results").glob("*.json")
    if "num_comparisons" in path.read_text()
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_document_of_version_1_0_0_is_written_as_it_was(path):
    before = json.loads(path.read_text())
    after = json.loads(to_json(read_document(path.read_text())))
    changed = {"plan", "margin", "margins", "statistics"}
    for name in (before.keys() | after.keys()) - changed:
        assert json.dumps(before[name]) == json.dumps(after[name]), name
