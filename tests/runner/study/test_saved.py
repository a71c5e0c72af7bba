"""Saved trials: committed results that replace the same training elsewhere, and their files."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.commands import printed, vitcli
from tests.own_code import forget
from tests.plugin_rows import of_task
from tests.runner.study.trials import LINES, ROOT, STUDY, fabricate, save_all, states, write_study
from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.runner.engines import drive
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import start_sha256
from vitcli.runner.experiment import own_code
from vitcli.runner.files import commit, sha256
from vitcli.runner.run import store
from vitcli.runner.run.folder import find_run
from vitcli.runner.run.record import metric_facts, saved_record
from vitcli.runner.run.store import read_lines, read_store
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import Options, plan_study, saved_for_training
from vitcli.runner.study.run import run_study, save_results
from vitcli.runner.study.saved import SAVED, SavedTrials
from vitcli.runner.study.states import trial_states
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document, to_json

__all__ = ["forget"]
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
    missing = {"full/seed1": "missing", "no-norm/seed1": "missing"}
    ended = {"full/seed0": "finished", "no-norm/seed0": "diverged"}
    assert states(study, saved) == missing | ended
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


def test_a_trial_from_older_weights_is_stale_if_its_first_run_is_at_hand(here, copy_of_run):
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
    copy_of_run(here / "runs/gone")
    assert states(gone, saved) == {"full/seed0": "missing"}
    assert saved.refused == {"full/seed0": "trained with other weights of gone"}


@pytest.mark.parametrize("newest", ["bf16", "fp32"])
def test_of_two_machines_results_the_matching_one_is_used_or_the_newest(study, newest):
    results = {"bf16": 0.25, "fp32": 0.75}
    for precision, accuracy in results.items():
        begun = {"started": f"2026-11-2{precision == newest:d}T08:00:00Z"}
        fabricate("full", 0, accuracy, result={"precision": precision}, meta=begun)
        save_all(study)
    shutil.rmtree(ROOT)
    for precision in (*results, ""):
        saved = SavedTrials(SAVED, precision and (lambda spec, here=precision: here))
        score = trial_states(study, ROOT, (), saved)["full/seed0"].test_score
        assert score == results[precision or newest]


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
    dead = SimpleNamespace(stopping=False, waiting=[], events=lambda tick: (event for event in ()))
    monkeypatch.setattr(drive, "LocalEngine", lambda *_: dead)
    found = run_study(plan, Options(jobs=1, device="cpu", command="x"), lambda event: None)
    assert found["full/seed0"].state == "missing", "the deleted trial has no saved result"
    assert states(study, saved, ignore=("full",))["full/seed0"] == "missing"
    plan = plan_study(study, ROOT, (), saved=saved)
    assert [trial.folder for trial in plan.trials] == left
    assert plan.rerun == ("full",), "the next call goes on, and does not mix old and new results"


def test_a_study_of_saved_trials_alone_is_a_study(study, monkeypatch):
    """It has a plan, so that it can be watched and removed."""
    monkeypatch.setattr("vitcli.runner.machine.device.name_precision", lambda *_: "fp32")
    monkeypatch.setattr("vitcli.runner.study.page.publish", lambda *_: None)
    for variant, seed in itertools.product(("full", "no-norm"), (0, 1)):
        fabricate(variant, seed)
    save_all(study)
    shutil.rmtree(ROOT)
    printed("ablate", "mine.yaml", "--device", "cpu")
    plan = json.loads((ROOT / PLAN).read_text())
    assert len(plan["saved"]) == len(plan["trials"]) == 4
    printed("runs", "rm", "mine", "--yes")
    assert not ROOT.exists()


OWN = """
from torch import nn
from vitcli.core.metric import METRICS, Metric
from vitcli.parts import objective
@objective(headline=%s)
def own(logits, targets):
    return nn.functional.cross_entropy(logits, targets)
"""


@pytest.mark.parametrize(
    ("headline", "has_images"),
    [
        ("METRICS['accuracy']", True),
        ("METRICS['accuracy']", False),  # it counts something else than it stores
        ("METRICS['balanced_accuracy']", False),
        ("Metric(name='psnr', label='PSNR')", False),
    ],
)
def test_saved_trials_of_an_own_objective_say_what_its_runs_say(here, headline, has_images):
    Path("own.py").write_text(OWN % headline)
    own = "base: quickstart\ncode: [own.py]\ntask: {name: own}\n"
    Path("own.yaml").write_text(own)
    own_code.state.typed |= {"own.yaml", "mine.yaml"}
    study = write_study(STUDY.replace("base: quickstart\n", own))
    metric = TASKS["own"].headline
    for (variant, gain), seed in itertools.product({"full": 0, "no-norm": 0.25}.items(), (0, 1)):
        score = 0.5 + seed / 100 - gain
        fabricate(
            variant,
            seed,
            score if has_images else 0.7,
            experiment="own.yaml",
            meta={"headline": metric_facts(metric)},
            result={"test_accuracy": None, f"test_{metric.name}": score},
        )
    whole = read_results(study, ROOT)
    assert [bool(row.contrast) for row in whole.rows] == [False, has_images]
    assert compare(whole)[1].difference == pytest.approx(-0.25 * metric.scale)
    save_all(study)
    shutil.rmtree(ROOT)
    assert read_results(study, ROOT, (), SavedTrials(SAVED)) == whole


def accuracies() -> dict[str, float | None]:
    return {entry.value["variant"]: entry.check().test_score for entry in read_store(SAVED)}


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
        patch.setattr(store.files, "commit", die)
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


PREDICTIONS = LINES.with_suffix(".npz")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
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
    with np.load(PREDICTIONS) as archive:
        arrays = {name: array[::-1] for name, array in archive.items()}
    np.savez(PREDICTIONS, **arrays)


DAMAGES: dict[str, Callable[[], object]] = {
    "a forged accuracy": forge(lambda value: value["record"]["result"].update(test_accuracy=0.99)),
    "a forged number of images": forge(lambda value: value["record"]["result"].update(num_test=1)),
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


FOLDER = Path(__file__).parents[3] / "experiments/results"
DOCUMENTS = {
    path: value
    for path in FOLDER.glob("*.json")
    if "num_comparisons" in (value := json.loads(path.read_text()))
}


@pytest.mark.parametrize(
    "path",
    [of_task({"task": {"name": doc.get("task", DEFAULT_TASK)}}, p) for p, doc in DOCUMENTS.items()],
    ids=lambda path: path.stem,
)
def test_a_document_of_version_1_0_0_is_written_as_it_was(path):
    before = json.loads(path.read_text())
    after = json.loads(to_json(read_document(path.read_text())))
    changed = {"plan", "margin", "margins", "statistics"}
    for name in (before.keys() | after.keys()) - changed:
        assert json.dumps(before[name]) == json.dumps(after[name]), name


def test_saved_trials_of_0_8_are_refused_by_name(study):
    old = SAVED / "mine" / "full" / "seed0-0123abcd.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    assert f"{old}: vitcli 0.8 saved this trial" in vitcli("ablate", "mine.yaml", "--status")[2]
