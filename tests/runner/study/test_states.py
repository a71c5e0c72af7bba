"""The state of a trial's folder, and which trials enter the table."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.fabricated import make_run
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import FILES, RunDir
from vitcli.runner.run.predictions import save_outputs
from vitcli.runner.study import states
from vitcli.runner.study.collect import collect, ranges, read_results
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.states import trial_states

STUDY = """
base: quickstart
seeds: [0, 1]
variants:
  full: {}
  no-norm: {model.norm: none}
"""
CHANGES = {"full": {}, "no-norm": {"model.norm": "none"}}
ROOT = Path("runs/mine")


@pytest.fixture
def study(here) -> Study:
    (here / "mine.yaml").write_text(STUDY)
    return load_study("mine.yaml")


def fabricate(variant: str, seed: int, accuracy: float = 0.5, **options) -> RunDir:
    """Make a trial that looks trained, with 2,000 predictions of the given accuracy."""
    folder = ROOT / variant / f"seed{seed}"
    meta = {"threads": 1, "device": "cpu"} | options.pop("meta", {})
    changes = CHANGES[variant] | options.pop("changes", {})
    run = make_run(
        seed, folder=folder, accuracy=accuracy, meta=meta, changes=changes or None, **options
    )
    import torch

    if val := options.get("result", {}).get("val_accuracy"):
        run.set_metrics([record | {"val_accuracy": val} for record in run.metrics()])
    labels = torch.zeros(2000, dtype=torch.long)
    logits = torch.zeros(2000, 2)
    logits[round(2000 * accuracy) :, 1] = 1
    save_outputs(run.path / "predictions.npz", {"logits": logits, "labels": labels})
    return run


def test_a_trial_without_a_folder_is_missing(study):
    assert {state.state for state in trial_states(study, ROOT).values()} == {"missing"}


def test_a_finished_trial_is_finished_and_counted(study):
    fabricate("full", 0, 0.75)
    assert pair(study) == ("finished", "")
    first = read_results(study, ROOT).rows[0].trials[0]
    assert (first.state, first.test_accuracy, first.epochs) == ("finished", 0.75, 8)
    assert first.curve[-1] == (8, 0.75)


def pair(study: Study) -> tuple[str, str]:
    """Return the state and reason of the first trial."""
    found = trial_states(study, ROOT)["full/seed0"]
    return found.state, found.reason


def stale(study: Study) -> str:
    state, reason = pair(study)
    assert state == "stale"
    trial = read_results(study, ROOT).rows[0].trials[0]
    assert trial.test_accuracy is None, "a stale trial has no number"
    return reason


def test_a_folder_edited_by_hand_is_stale(study):
    run = fabricate("full", 0)
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("depth: 4", "depth: 5"))
    assert stale(study) == "model.depth is 5 in its folder, 4 in the study"
    config.write_text("model: [")
    assert "config.yaml cannot be read" in stale(study)


def test_a_study_that_was_edited_makes_its_trials_stale(study, here):
    fabricate("full", 0)
    (here / "mine.yaml").write_text(STUDY + "train: {epochs: 9}\n")
    assert stale(load_study("mine.yaml")) == "train.epochs is 8 in its folder, 9 in the study"


def test_a_trial_with_other_threads_is_stale(study):
    fabricate("full", 0, meta={"threads": 2})
    assert stale(study) == "trained with 2 threads; the study uses 1"
    fabricate("full", 0, meta={"threads": 1, "sessions": [{"threads": 4}]})
    assert "4 threads" in stale(study)


def test_threads_do_not_matter_on_a_gpu(study):
    fabricate("full", 0, meta={"threads": 8, "device": "cuda:0"})
    assert trial_states(study, ROOT)["full/seed0"].state == "finished"


def test_an_accuracy_unlike_its_predictions_is_stale(study):
    run = fabricate("full", 0, 0.5)
    commit_json(run.path / "result.json", run.read("result.json") | {"test_accuracy": 0.99})
    assert stale(study) == "its result.json says 0.9900, but its predictions give 0.5000"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nonsense"])
def test_damaged_predictions_are_stale(study, content):
    run = fabricate("full", 0)
    (run.path / "predictions.npz").write_bytes(content)
    assert "predictions.npz is missing or damaged" in stale(study)


def test_predictions_are_never_unpickled(study):
    run = fabricate("full", 0)
    np.savez(
        run.path / "predictions.npz",
        logits=np.array([{"a": 1}], dtype=object),
        labels=np.zeros(1),
        allow_pickle=True,
    )
    assert "damaged" in stale(study)


def test_a_finished_trial_without_its_result_has_failed(study):
    run = fabricate("full", 0)
    (run.path / "result.json").write_text("{")
    assert pair(study) == ("failed", "its result.json is missing or damaged")


def test_a_trial_whose_process_is_gone_is_interrupted(study):
    fabricate("full", 0, state="running")
    assert trial_states(study, ROOT)["full/seed0"].state == "interrupted"


def test_a_trial_of_another_process_is_running(study):
    run = fabricate("full", 0, state="running")
    with run.lock():
        assert trial_states(study, ROOT)["full/seed0"].state == "running"


def test_a_diverged_trial_is_a_result_without_numbers(study):
    fabricate("full", 0, state="diverged")
    trial = read_results(study, ROOT).rows[0].trials[0]
    assert (trial.state, trial.test_accuracy, trial.epochs) == ("diverged", None, 3)


def test_foreign_folders_are_ignored(study):
    fabricate("full", 0, 0.5)
    make_run(0, folder=ROOT / "elsewhere" / "seed0", accuracy=0.9)
    make_run(5, folder=ROOT / "full" / "seed5", accuracy=0.9)
    doc = read_results(study, ROOT)
    assert [row.variant for row in doc.rows] == ["full", "no-norm"]
    assert [trial.seed for trial in doc.rows[0].trials] == [0, 1]


def test_trials_on_different_images_are_not_compared(study):
    fabricate("full", 0)
    fabricate("no-norm", 0, meta={"data_hash": "e" * 64})
    with pytest.raises(InputError, match=r"different images .*--rerun"):
        read_results(study, ROOT)


def test_the_document_says_where_its_numbers_come_from(study):
    fabricate("full", 0)
    fabricate("no-norm", 0, meta={"commit": "f" * 40, "dirty": True})
    doc = read_results(study, ROOT)
    assert doc.commits == ("c" * 40, "f" * 40)
    assert doc.dirty
    assert (doc.data, doc.data_hash, doc.num_test) == ("scenes", "d" * 64, 2000)
    assert doc.date == "2026-11-20"
    assert doc.command == "vitcli ablate mine.yaml"
    assert doc.num_comparisons == 1


def test_the_command_names_the_requested_seeds_and_variants(study):
    other = load_study("mine.yaml", [0, 1, 2, 3, 9])
    found = trial_states(other, ROOT, ["full"])
    doc = collect(other, ROOT, found, {}, ["full"])
    assert doc.command == "vitcli ablate mine.yaml --seeds 0-3,9 --only full"
    assert [row.variant for row in doc.rows] == ["full"]
    assert doc.num_comparisons == 1, "what is not shown still counts for Holm"


def damage(run: RunDir, name: str, content: object) -> None:
    if isinstance(content, bytes):
        (run.path / name).write_bytes(content)
    else:
        commit_json(run.path / name, content)


def arrays(**values) -> bytes:
    with io.BytesIO() as file:
        np.savez(file, **values)
        return file.getvalue()


FAULTS = {
    "no predictions": ("predictions.npz", arrays(logits=np.zeros((0, 2)), labels=np.zeros(0))),
    "few predictions": ("predictions.npz", arrays(logits=np.eye(2), labels=np.array([0, 0]))),
    "another kind of file": ("predictions.npz", b"\x93NUMPY"),
    "another trial's meta": ("meta.json", {"config_hash": "b" * 64, "threads": 1}),
    "no meta": ("meta.json", {}),
    "sessions are no list": ("meta.json", {"threads": 1, "sessions": None}),
    "sessions of text": ("meta.json", {"threads": 1, "sessions": ["x"]}),
    "a metrics line without epoch": ("metrics.jsonl", b'{"step": 1, "test_accuracy": 0.5}\n'),
    "a metrics line of text": ("metrics.jsonl", b'{"step":1,"epoch":1,"test_accuracy":"x"}\n'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_or_edited_trial_is_stale_and_never_counted(study, fault):
    good, bad = fabricate("full", 1), fabricate("full", 0)
    damage(bad, *FAULTS[fault])
    state, reason = pair(study)
    assert state == "stale"
    assert reason
    doc = read_results(study, ROOT)
    assert [trial.state for trial in doc.rows[0].trials] == ["stale", "finished"]
    assert good.exists


@pytest.mark.parametrize("field", ["train_seconds", "train_loss", "val_accuracy"])
def test_text_for_a_number_makes_a_trial_stale(study, field):
    fabricate("full", 0, result={field: "0.5"})
    assert trial_states(study, ROOT)["full/seed0"].state == "stale"


def test_a_copied_seed_does_not_count_twice(study):
    run = fabricate("full", 0)
    copy = ROOT / "full" / "seed1"
    shutil.copytree(run.path, copy)
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    assert trial_states(study, ROOT)["full/seed1"].state == "stale"


def test_the_document_ignores_stale_trials(study):
    fabricate("full", 0)
    fabricate("full", 1, result={"num_test": 7, "precision": "bogus"})
    doc = read_results(study, ROOT)
    assert [trial.state for trial in doc.rows[0].trials] == ["finished", "stale"]
    assert (doc.num_test, doc.precision) == (2000, ("fp32",))
    assert doc.rows[0].parameters == 140618


def test_the_base_config_has_no_tuned_fields(here):
    study = tuned(here, {"0.001": [0.6], "0.002": [0.9]})
    assert "optim.lr" not in read_results(study, ROOT).base_config
    assert "data.val_split" in read_results(study, ROOT).base_config


def test_the_command_of_the_baseline_alone(study):
    doc = collect(study, ROOT, trial_states(study, ROOT, ["full"]), {}, ["full"])
    assert doc.command == "vitcli ablate mine.yaml --only full"


def test_seeds_are_written_as_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


TUNED = STUDY + "data: {val_split: 1000}\ntune: {optim.lr: [1.0e-3, 2.0e-3]}\n"


def tuned(here, scores: dict[str, list[float | None]]) -> Study:
    """Return a study with ``full`` trained in two settings; a score None is a diverged trial."""
    (here / "mine.yaml").write_text(TUNED)
    for lr, values in scores.items():
        for seed, val in enumerate(values):
            run = fabricate(
                "full",
                seed,
                0.5 if lr == "0.001" else 0.25,
                state="finished" if val is not None else "diverged",
                changes={"data.val_split": 1000, "optim.lr": float(lr)},
                result={"val_accuracy": val},
            )
            target = ROOT / "full" / f"lr={lr}" / f"seed{seed}"
            target.parent.mkdir(parents=True, exist_ok=True)
            run.path.rename(target)
    return load_study("mine.yaml")


def test_the_setting_with_the_best_validation_accuracy_is_chosen(here):
    study = tuned(here, {"0.001": [0.6, 0.7], "0.002": [0.9, 0.5]})
    row = read_results(study, ROOT).rows[0]
    assert row.chosen == {"optim.lr": 0.002}
    assert [trial.test_accuracy for trial in row.trials] == [0.25, 0.25], "not the best on test"
    assert [c.val_accuracy for c in row.candidates] == pytest.approx([0.65, 0.7])


def test_no_setting_is_chosen_before_all_have_results(here):
    study = tuned(here, {"0.001": [0.6, 0.7], "0.002": [0.9]})
    row = read_results(study, ROOT).rows[0]
    assert row.chosen is None
    assert {trial.state for trial in row.trials} == {"missing"}
    assert {trial.test_accuracy for trial in row.trials} == {None}


def test_a_diverged_setting_is_not_chosen(here):
    study = tuned(here, {"0.001": [0.6, 0.6], "0.002": [0.9, None]})
    row = read_results(study, ROOT).rows[0]
    assert row.chosen == {"optim.lr": 0.001}
    assert row.candidates[1].num_diverged == 1


def test_the_document_survives_json(study):
    fabricate("full", 0)
    doc = read_results(study, ROOT)
    assert type(doc).model_validate(json.loads(doc.model_dump_json())) == doc


def test_a_bug_does_not_make_finished_trials_stale(study, monkeypatch):
    """Only damage makes a trial stale, because a stale trial is renamed and trained again."""
    fabricate("full", 0)

    def broken(*_: object) -> None:
        raise KeyError("a mistake in the program")

    monkeypatch.setattr(states, "differences", broken)
    with pytest.raises(KeyError):
        trial_states(study, ROOT)


@pytest.mark.parametrize("name", ["meta.json", "predictions.npz", "metrics.jsonl"])
def test_a_file_that_cannot_be_read_is_an_error_and_not_damage(study, name):
    run = fabricate("full", 0)
    (run.path / name).unlink()
    (run.path / name).mkdir()  # even root cannot read a folder as a file
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        trial_states(study, ROOT)
    assert (run.path / "config.yaml").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_an_endless_file_is_damage_and_read_by_no_one(study, name):
    path = fabricate("full", 0).path / name
    for make in (
        os.mkfifo,
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 41),
    ):
        path.unlink()
        make(path)
        assert trial_states(study, ROOT)["full/seed0"].state != "finished"


def test_a_diverged_trial_takes_no_images_from_the_finished_ones(study):
    for variant in CHANGES:
        for seed in (0, 1):
            fabricate(variant, seed)
    both = read_results(load_study("mine.yaml", seeds=[0, 1, 2]), ROOT).rows[1]
    diverged = fabricate("no-norm", 2, state="diverged")
    (diverged.path / "predictions.npz").unlink()
    row = read_results(load_study("mine.yaml", seeds=[0, 1, 2]), ROOT).rows[1]
    assert [trial.state for trial in row.trials] == ["finished", "finished", "diverged"]
    assert row.contrast is not None
    assert (row.images, row.contrast) == (both.images, both.contrast)
