"""Saved trials: committed results that replace the same training elsewhere."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.runner.study.test_states import ROOT, STUDY, fabricate
from vitcli.cli.main import app
from vitcli.runner.engines import drive
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.store import read_lines, read_store
from vitcli.runner.study import plan as study_plan
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import Options, plan_study, saved_for_training
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.run import run_study, save_results
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.states import trial_states
from vitcli.runner.study.table import read_document, render
from vitcli.runner.train.events import Ended, TrialEvent


@pytest.fixture
def study(here) -> Study:
    (here / "mine.yaml").write_text(STUDY)
    return load_study("mine.yaml")


def save_all(study: Study) -> None:
    save_results(plan_study(study, ROOT, ()), SAVED)


LINES = SAVED / "mine/seed0.jsonl"


def value_of(variant: str) -> dict:
    """Return the saved trial of a variant with seed 0."""
    (found,) = (each for each in read_lines(LINES) if each.value["variant"] == variant)
    return found.value


def states(study: Study, saved: SavedTrials | None) -> dict[str, str]:
    return {name: state.state for name, state in trial_states(study, ROOT, (), saved).items()}


@pytest.mark.parametrize("has_folders", [False, True])
def test_a_saved_trial_counts_if_the_study_has_no_result(study, has_folders):
    fabricate("full", 0, 0.75)
    fabricate("no-norm", 0, state="diverged")
    save_all(study)
    whole = read_results(study, ROOT)
    if not has_folders:
        shutil.rmtree(ROOT)
    saved = SavedTrials(SAVED)
    assert states(study, saved) == {
        "full/seed0": "finished", "no-norm/seed0": "diverged",
        "full/seed1": "missing", "no-norm/seed1": "missing",
    }  # fmt: skip
    assert read_results(study, ROOT, (), saved) == whole
    source = "" if has_folders else str(SAVED)
    assert trial_states(study, ROOT, (), saved)["full/seed0"].source == source
    assert saved.refused == {}


def test_a_saved_trial_holds_labels_predictions_and_probabilities(study):
    fabricate("full", 0, 0.75)
    save_all(study)
    (found,) = read_lines(LINES)
    arrays = found.predictions()
    assert arrays["label"].dtype == arrays["prediction"].dtype == np.uint8
    assert (arrays["label"] == arrays["prediction"]).mean() == 0.75
    expected = np.where(np.arange(2000) < 1500, 0.5, 1 / (1 + np.e))
    np.testing.assert_allclose(arrays["probability"], expected, atol=1e-3)
    with np.load(LINES.with_suffix(".npz")) as file:
        assert all(name.startswith("full/") for name in file)


def test_a_saved_trial_holds_no_path_of_this_machine(here, pictures):
    base = f"base: quickstart\ndata: {{name: 'imagefolder:{pictures}'}}\n"
    (here / "mine.yaml").write_text(base + "seeds: [0]\nvariants: {full: {}}\n")
    fabricate("full", 0, changes={"data.name": f"imagefolder:{pictures}"})
    save_all(load_study("mine.yaml"))
    text = LINES.read_text()
    assert "imagefolder:pictures" in text
    assert str(here) not in text


def test_a_trial_with_a_pre_training_is_saved_with_its_fields(here):
    first = {"pretrain.task.name": "mae", "pretrain.train.epochs": 2}
    variants = f"{{full: {json.dumps(first)}}}"
    (here / "mine.yaml").write_text(f"base: quickstart\nseeds: [0]\nvariants: {variants}\n")
    fabricate("full", 0, 0.5, changes=first)
    study = load_study("mine.yaml")
    save_all(study)
    config = value_of("full")["config"]
    assert {name: value for name, value in config.items() if name in first} == first
    assert states(study, SavedTrials(SAVED))["full/seed0"] == "finished"
    read_document(render(read_results(study, ROOT), "json"))


def test_any_study_finds_a_saved_trial_by_its_configuration(study, here):
    fabricate("full", 0, 0.75)
    save_all(study)
    shutil.rmtree(ROOT)
    (here / "other.yaml").write_text("base: quickstart\nseeds: [0]\nvariants: {same: {}}\n")
    assert states(load_study("other.yaml"), SavedTrials(SAVED)) == {"same/seed0": "finished"}
    (here / "other.yaml").write_text(
        "base: quickstart\nseeds: [0]\nvariants: {other: {optim.lr: 0.5}}\n"
    )
    assert states(load_study("other.yaml"), SavedTrials(SAVED)) == {"other/seed0": "missing"}


def test_the_trials_of_a_study_itself_come_first(study, here):
    (here / "a-study.yaml").write_text("base: quickstart\nseeds: [0]\nvariants: {full: {}}\n")
    other = load_study("a-study.yaml")
    fabricate("full", 0, 0.75)
    save_all(study)
    fabricate("full", 0, 0.5)
    save_all(other)
    shutil.rmtree(ROOT)
    for each, accuracy in ((study, 0.75), (other, 0.5)):
        state = next(iter(trial_states(each, ROOT, (), SavedTrials(SAVED)).values()))
        assert state.record.result.test_accuracy == accuracy


@pytest.mark.parametrize(
    ("meta", "result", "reason"),
    [
        ({}, {"precision": "bf16"}, "saved in bf16, needed in fp32"),
        ({"data_hash": "e" * 64}, {}, "trained on other images (eeeeeeeeeeee)"),
        ({"threads": 4}, {}, "trained with 4 threads; the study uses 1"),
    ],
)
def test_a_saved_trial_that_differs_is_refused_with_a_reason(study, meta, result, reason):
    run = fabricate("full", 0, 0.75, meta=meta, result=result)
    four = Study(**vars(study) | {"threads": meta.get("threads", 1)})
    save_all(four)
    shutil.rmtree(run.path)
    fabricate("no-norm", 0)
    saved = SavedTrials(SAVED)
    assert states(study, saved)["full/seed0"] == "missing"
    assert saved.refused == {"full/seed0": reason}


def test_before_a_training_this_machines_precision_decides(study):
    fabricate("full", 0, 0.75, result={"precision": "bf16"})
    save_all(study)
    shutil.rmtree(ROOT)
    assert states(study, SavedTrials(SAVED))["full/seed0"] == "finished", "it counts for display"
    for precision, state in (("bf16", "finished"), ("fp32", "missing")):
        saved = SavedTrials(SAVED, lambda spec, here=precision: here)
        assert states(study, saved)["full/seed0"] == state


def test_the_precision_of_own_results_decides_too(study):
    fabricate("full", 0, 0.75, result={"precision": "bf16"})
    save_all(study)
    shutil.rmtree(ROOT)
    fabricate("no-norm", 0)
    saved = SavedTrials(SAVED, lambda spec: "bf16")
    assert states(study, saved)["full/seed0"] == "missing"
    assert saved.refused == {"full/seed0": "saved in bf16, needed in fp32"}


def test_an_image_folder_is_compared_by_its_images_and_not_its_name(here, pictures):
    base = f"base: quickstart\ndata: {{name: 'imagefolder:{pictures}'}}\n"
    (here / "mine.yaml").write_text(base + "seeds: [0]\nvariants: {full: {}}\n")
    study = load_study("mine.yaml")
    fabricate("full", 0, changes={"data.name": f"imagefolder:{pictures}"})
    save_all(study)
    shutil.rmtree(ROOT)
    for ours, state in (("d" * 64, "finished"), ("e" * 64, "missing"), (None, "finished")):
        saved = SavedTrials(SAVED, lambda spec: "fp32", lambda spec, ours=ours: ours)
        assert states(study, saved) == {"full/seed0": state}
    found = saved_for_training(SAVED, Options(device="cpu", offline=True))
    assert states(study, found) == {"full/seed0": "missing"}, "the pictures have another hash"


@pytest.mark.parametrize("state", ["running", "failed", "interrupted"])
def test_a_saved_trial_does_not_replace_a_started_one(study, state):
    fabricate("full", 0)
    save_all(study)
    RunDir(ROOT / "full/seed0").set_status(state, 300)
    expected = "interrupted" if state == "running" else state  # no process holds its folder
    assert states(study, SavedTrials(SAVED))["full/seed0"] == expected


class NoWorkers:
    """Stands in for the engine: every worker dies before it trains."""

    stopping = False

    def __init__(self, *_, **__) -> None:
        pass

    def events(self, tick):
        tick()
        yield from ()


def test_a_rerun_uses_no_saved_trial(study, monkeypatch):
    fabricate("full", 0)
    save_all(study)
    saved = SavedTrials(SAVED)
    plan = plan_study(study, ROOT, (), rerun=("full",), saved=saved)
    assert [trial.folder for trial in plan.trials][:2] == ["full/seed0", "no-norm/seed0"]
    monkeypatch.setattr(drive, "make_engine", NoWorkers)
    found = run_study(plan, Options(jobs=1, device="cpu", command="x"), lambda event: None)
    assert found["full/seed0"].state == "missing", "the deleted trial has no saved result"
    assert trial_states(study, ROOT, (), saved, ignore=("full",))["full/seed0"].state == "missing"
    plan = plan_study(study, ROOT, (), saved=saved)
    assert [trial.folder for trial in plan.trials][:2] == ["no-norm/seed0", "full/seed1"]


def test_of_two_machines_results_the_matching_one_is_used(study):
    for precision, accuracy in (("bf16", 0.25), ("fp32", 0.75)):
        fabricate("full", 0, accuracy, result={"precision": precision})
        save_all(study)
    assert len(read_store(SAVED)) == 2
    shutil.rmtree(ROOT)
    for precision, accuracy in (("bf16", 0.25), ("fp32", 0.75)):
        saved = SavedTrials(SAVED, lambda spec, here=precision: here)
        record = trial_states(study, ROOT, (), saved)["full/seed0"].record
        assert record is not None
        assert record.result.test_accuracy == accuracy


def test_a_committed_result_stays_unless_it_is_trained_again(study):
    fabricate("full", 0, 0.75)
    save_all(study)
    before = LINES.read_bytes()
    fabricate("full", 0, 0.25)
    save_all(study)
    assert LINES.read_bytes() == before
    save_results(plan_study(study, ROOT, (), rerun=("full",)), SAVED, "full/seed0")
    assert value_of("full")["record"]["result"]["test_accuracy"] == 0.25
    assert len(read_lines(LINES)) == 1


def test_an_estimate_does_not_use_another_machines_times(study, monkeypatch):
    fabricate("full", 0, result={"train_seconds": 3.0})
    save_all(study)
    shutil.rmtree(ROOT)
    plan = plan_study(study, ROOT, (), saved=SavedTrials(SAVED))
    estimate = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("vitcli.runner.train.estimate.make_estimate", lambda *_: estimate)
    options = Options(jobs=1, device="cpu")
    found = study_plan.estimate_study(plan, options, spent_seconds=3.0)
    assert found.by_variant["full"] == 1000.0
    assert found.total == 2 * 3.0 + 1000.0 * len(plan.trials), "study and worker start first"


def test_a_study_of_saved_trials_alone_is_a_study(study, here, monkeypatch):
    """It has a plan, so that it can be watched, listed and removed, and its margin is kept."""
    monkeypatch.setattr("vitcli.runner.machine.device.name_precision", lambda *_: "fp32")
    margin = "equivalence_margin: 1.0\n"
    (here / "mine.yaml").write_text(STUDY + margin)
    for variant, seed in itertools.product(("full", "no-norm"), (0, 1)):
        fabricate(variant, seed)
    save_all(load_study("mine.yaml"))
    shutil.rmtree(ROOT)
    done = CliRunner().invoke(app, ["ablate", "mine.yaml", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "tensorboard" not in done.output
    plan = json.loads((ROOT / PLAN).read_text())
    assert len(plan["saved"]) == len(plan["trials"]) == 4
    plan["margins"][0]["date"] = "2026-01-01"
    commit_json(ROOT / PLAN, plan)
    again = CliRunner().invoke(app, ["ablate", "mine.yaml", "--device", "cpu"])
    assert "declared on 2026-01-01" in again.stdout
    assert json.loads((ROOT / PLAN).read_text()) == plan
    for words in (["ls"], ["watch", "mine", "--once"], ["page"]):
        shown = CliRunner().invoke(app, ["runs", *words])
        assert shown.exit_code == 0, shown.output
        assert "mine" in shown.output or words == ["page"]
    removed = CliRunner().invoke(app, ["runs", "rm", "mine", "--yes"])
    assert removed.exit_code == 0, removed.output
    assert not ROOT.exists()


def timeless(doc: StudyResult) -> dict:
    document = doc.model_dump(mode="json")
    for row in document["rows"]:
        for trial in row["trials"]:
            del trial["train_seconds"], trial["images_per_second"]
    return document


def train_study(name: str, seeds: Sequence[int], root: Path, save: Path | None = None) -> list[int]:
    """Train as the command does; return the number of saved trials after each trial."""
    plan, counts = plan_study(load_study(name, seeds), root, ()), []

    def listen(event: TrialEvent) -> None:
        if save and isinstance(event.event, Ended):
            save_results(plan, save, event.folder)
            counts.append(len(read_store(save)))

    run_study(plan, Options(jobs=1, device="cpu", command="vitcli ablate mine"), listen)
    return counts


@pytest.mark.ci
def test_a_study_continued_elsewhere_from_its_first_seed_gives_the_same_table(
    tiny, here, monkeypatch
):
    Path("mine.yaml").write_text(
        "base: tiny.yaml\ntrain: {epochs: 2}\nseeds: [0, 1]\n"
        "variants: {full: {}, no-norm: {model.norm: none}}\n"
    )
    train_study("mine.yaml", [0, 1], Path("whole"))
    whole = read_results(load_study("mine.yaml"), Path("whole"))
    saved = train_study("mine.yaml", [0], Path("first"), SAVED)
    assert saved == [1, 2], "each trial is saved when it ends"

    clone = here / "clone"
    clone.mkdir()
    shutil.copytree(SAVED, clone / SAVED)
    for name in ("mine.yaml", "tiny.yaml"):
        shutil.copy(name, clone)
    monkeypatch.chdir(clone)
    looked = CliRunner().invoke(app, ["ablate", "mine.yaml", "--status"])
    assert "2 finished, 2 missing" in looked.output
    words = ["ablate", "mine.yaml", "--device", "cpu", "-j", "1", "-o", "rest"]
    rest = CliRunner().invoke(app, [*words, "--save", str(SAVED)])
    assert rest.exit_code == 0, rest.output
    assert f"2 of 4 trials taken from {SAVED}" in rest.stderr
    assert "2 to train" in rest.stderr
    assert not Path("rest/full/seed0").exists()
    document = read_document(Path("rest/results.json").read_text())
    assert timeless(document) == timeless(whole)
    assert len(read_store(SAVED)) == 4
    shown = CliRunner().invoke(app, ["ablate", "mine.yaml", "--table-only", "-o", "elsewhere"])
    assert (shown.exit_code, shown.stdout) == (0, rest.stdout), "the table needs no training"
