"""Saved trials: committed results that replace the same training elsewhere."""

import itertools
import json
import shutil
from types import SimpleNamespace

import pytest

from tests.cli.commands import printed, vitcli
from tests.runner.study.trials import LINES, ROOT, fabricate, save_all, states, write_study
from vitcli.runner.engines import drive
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.evaluate.weights import start_sha256
from vitcli.runner.run.folder import find_run
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study
from vitcli.runner.study.plan import Options, plan_study, saved_for_training
from vitcli.runner.study.run import run_study
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.states import trial_states

ONE = "base: quickstart\nseeds: [0]\nvariants: {full: {}}\n"


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


@pytest.mark.parametrize(
    ("meta", "result", "precision", "reason"),
    [
        ({}, {"precision": "bf16"}, None, "saved in bf16, needed in fp32"),
        ({}, {"precision": "bf16"}, "bf16", "saved in bf16, needed in fp32"),
        ({"data_hash": "e" * 64}, {}, None, "trained on other images (eeeeeeeeeeee)"),
        ({"threads": 4}, {}, None, "trained with 4 threads; the study uses 1"),
    ],
)
def test_a_saved_trial_unlike_the_own_results_is_refused(study, meta, result, precision, reason):
    run = fabricate("full", 0, 0.75, meta=meta, result=result)
    save_all(Study(**vars(study) | {"threads": meta.get("threads", 1)}))
    shutil.rmtree(run.path)
    fabricate("no-norm", 0)
    saved = SavedTrials(SAVED, precision and (lambda spec: precision))
    assert states(study, saved)["full/seed0"] == "missing"
    assert saved.refused == {"full/seed0": reason}


def test_a_trial_from_older_weights_is_stale_if_its_first_run_is_at_hand(here):
    first = {"train.init": "cifar10-pocket"}
    study = write_study(ONE.replace("{}", json.dumps(first)))
    own = start_sha256(find_run("cifar10-pocket"))
    for digest, state in ((own, "finished"), (None, "finished"), ("e" * 64, "stale")):
        fabricate("full", 0, changes=first, meta={"init_sha256": digest})
        assert states(study) == {"full/seed0": state}
    gone = write_study(ONE.replace("{}", "{train.init: gone}"))
    fabricate("full", 0, changes={"train.init": "gone"}, meta={"init_sha256": "e" * 64})
    save_all(gone)
    shutil.rmtree(ROOT)
    saved = SavedTrials(SAVED)
    assert states(gone, saved) == {"full/seed0": "finished"}
    shutil.copytree(find_run("cifar10-pocket").path, "runs/gone")
    assert states(gone, saved) == {"full/seed0": "missing"}
    assert saved.refused == {"full/seed0": "trained with other weights of gone"}


def test_of_two_machines_results_the_matching_one_is_used(study):
    results = {"bf16": 0.25, "fp32": 0.75}
    for precision, accuracy in results.items():
        fabricate("full", 0, accuracy, result={"precision": precision})
        save_all(study)
    shutil.rmtree(ROOT)
    for precision, accuracy in results.items():
        saved = SavedTrials(SAVED, lambda spec, here=precision: here)
        assert trial_states(study, ROOT, (), saved)["full/seed0"].test_score == accuracy


def test_an_image_folder_is_compared_by_its_images_and_not_its_name(here, pictures):
    study = write_study(f"data: {{name: 'imagefolder:{pictures}'}}\n{ONE}")
    fabricate("full", 0, changes={"data.name": f"imagefolder:{pictures}"})
    save_all(study)
    assert "imagefolder:pictures" in LINES.read_text()
    assert str(here) not in LINES.read_text()
    shutil.rmtree(ROOT)
    for ours, state in (("d" * 64, "finished"), ("e" * 64, "missing"), (None, "finished")):
        saved = SavedTrials(SAVED, lambda spec: "fp32", lambda spec, ours=ours: ours)
        assert states(study, saved) == {"full/seed0": state}
    found = saved_for_training(SAVED, Options(device="cpu", offline=True))
    assert states(study, found) == {"full/seed0": "missing"}, "the pictures have another hash"


def test_a_rerun_of_a_variant_uses_none_of_its_saved_trials(study, monkeypatch):
    for variant in ("full", "no-norm"):
        fabricate(variant, 0)
    save_all(study)
    left = ["full/seed0", "full/seed1", "no-norm/seed1"]
    saved = SavedTrials(SAVED)
    plan = plan_study(study, ROOT, (), rerun=("full",), saved=saved)
    assert plan.replaced == {"full/seed0"}
    assert [trial.folder for trial in plan.trials] == left
    dead = SimpleNamespace(stopping=False, events=lambda tick: (event for event in ()))
    monkeypatch.setattr(drive, "make_engine", lambda *_: dead)
    found = run_study(plan, Options(jobs=1, device="cpu", command="x"), lambda event: None)
    assert found["full/seed0"].state == "missing", "the deleted trial has no saved result"
    assert states(study, saved, ignore=("full",))["full/seed0"] == "missing"
    plan = plan_study(study, ROOT, (), saved=saved)
    assert [trial.folder for trial in plan.trials] == left
    assert plan.rerun == ("full",), "the next call goes on, and does not mix old and new results"


def test_a_study_of_saved_trials_alone_is_a_study(study, monkeypatch):
    """It has a plan, so that it can be watched, listed and removed."""
    monkeypatch.setattr("vitcli.runner.machine.device.name_precision", lambda *_: "fp32")
    monkeypatch.setattr("vitcli.runner.study.page.publish", lambda *_: None)
    for variant, seed in itertools.product(("full", "no-norm"), (0, 1)):
        fabricate(variant, seed)
    save_all(study)
    shutil.rmtree(ROOT)
    printed("ablate", "mine.yaml", "--device", "cpu")
    plan = json.loads((ROOT / PLAN).read_text())
    assert len(plan["saved"]) == len(plan["trials"]) == 4
    assert "mine" in vitcli("runs", "ls")[2]
    printed("runs", "rm", "mine", "--yes")
    assert not ROOT.exists()
