"""The state of a trial's folder, which trials enter the table, and which are trained."""

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fabricated import make_run
from tests.runner.study.trials import ROOT, TUNED, fabricate, write_study
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study import estimate
from vitcli.runner.study.collect import read_results
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.estimate import dry_run_study
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.states import trial_states
from vitcli.runner.study.table import read_document, to_json
from vitcli.runner.train.events import seconds_left


def test_a_result_enters_the_table_whole(study):
    fabricate("full", 0, 0.75)
    fabricate("full", 1, state="diverged")
    other = {"commit": "f" * 40, "dirty": True, "inexact": ["from step 5: threads 1 -> 2"]}
    fabricate("no-norm", 0, meta=other)
    make_run(0, folder=ROOT / "elsewhere" / "seed0", accuracy=0.9)
    make_run(5, folder=ROOT / "full" / "seed5", accuracy=0.9)
    doc = read_results(study, ROOT)
    assert [row.variant for row in doc.rows] == ["full", "no-norm"], "foreign folders are ignored"
    first, diverged = doc.rows[0].trials
    assert (first.state, first.test_score, first.epochs) == ("finished", 0.75, 8)
    assert first.curve[-1] == (8, 0.75)
    assert (diverged.state, diverged.test_score, diverged.epochs) == ("diverged", None, 3)
    assert (doc.commits, doc.dirty) == (("c" * 40, "f" * 40), True)
    assert doc.inexact == ("no-norm/seed0",)
    assert (doc.data, doc.data_hash, doc.num_test) == ("scenes", "d" * 64, 2000)
    assert (doc.date, doc.command) == ("2026-11-20", "vitcli ablate mine.yaml")
    assert doc.num_comparisons == 1
    assert read_document(to_json(doc)) == doc
    fabricate("no-norm", 1, meta={"data_hash": "e" * 64})
    with pytest.raises(InputError, match="--rerun"):
        read_results(study, ROOT)


def test_rows_have_their_kernels_if_those_of_a_study_differ(study):
    for variant in ("full", "no-norm"):
        fabricate(variant, 0, result={"kernels": "native"})
    doc = read_results(study, ROOT)
    assert (doc.kernels, [row.kernels for row in doc.rows]) == (("native",), [(), ()])
    fabricate("no-norm", 1, result={"kernels": "torch"})
    found = [row.kernels for row in read_results(study, ROOT).rows]
    assert found == [("native",), ("native", "torch")]


def edit(name: str, old: str, new: str) -> Callable[[RunDir], object]:
    return lambda run: write(name, (run.path / name).read_text().replace(old, new))(run)


def write(name: str, content: str) -> Callable[[RunDir], object]:
    return lambda run: (run.path / name).write_text(content)


def keep_only_weights(run: RunDir) -> None:
    (run.checkpoints / "800/weights.safetensors").touch()
    run.set_status("interrupted", 800)


STALE: dict[str, tuple[Callable[[RunDir], object], str]] = {
    "another configuration": (edit("config.yaml", "depth: 4", "depth: 5"), "model.depth is 5 in"),
    "other threads later": (edit("meta.json", '"threads": 1', '"threads": 4'), "4 threads"),
    "another accuracy": (edit("result.json", "0.5", "0.99"), "predictions.npz: "),
    "other images": (edit("result.json", "2000", "1000"), "predictions.npz: "),
    "another split": (edit("result.json", "test_accuracy", "val_accuracy"), "no test accuracy"),
    "no result": (write("result.json", "{"), "result.json: "),
    "empty predictions": (write("predictions.npz", ""), "predictions.npz: "),
    "another trial's meta": (write("meta.json", '{"config_hash": "b"}'), "as another trial"),
    "weights alone": (keep_only_weights, "only its final weights"),
}


@pytest.mark.parametrize("fault", STALE)
def test_a_damaged_or_edited_trial_is_stale_and_never_counted(study, fault):
    change, reason = STALE[fault]
    fabricate("full", 1)
    change(fabricate("full", 0))
    record = trial_states(study, ROOT)["full/seed0"]
    assert (record.state, reason in record.reason) == ("stale", True), record.reason
    first, second = read_results(study, ROOT).rows[0].trials
    assert (first.state, first.test_score, second.state) == ("stale", None, "finished")


def test_results_state_the_parameters_where_no_training_needs_a_model(study):
    for seed, meta in enumerate([{"parameters": 8}, {}]):  # older runs that diverged state none
        fabricate("full", seed, result={"parameters": 7})
        fabricate("no-norm", seed, state="diverged", meta=meta)
    assert plan_study(study, ROOT, ()).parameters == {"full": 7, "no-norm": 8}
    assert [row.parameters for row in read_results(study, ROOT).rows] == [7, 8]


def test_a_row_without_a_trial_of_its_own_states_no_parameters_of_an_earlier_plan(study):
    fabricate("full", 0)
    fabricate("no-norm", 0, state="failed")
    plan = {"trials": {}, "parameters": {"full": 7, "no-norm": 8}}
    (ROOT / PLAN).write_text(json.dumps(plan))
    edit("config.yaml", "depth: 4", "depth: 5")(RunDir(ROOT / "full/seed0"))
    assert [row.parameters for row in read_results(study, ROOT).rows] == [None, 8]


def test_the_command_names_the_requested_seeds_and_variants(study):
    for seeds, words in (([0, 1, 2, 3, 9, 11, 12], " --seeds 0-3,9,11-12"), (None, "")):
        asked = load_study("mine.yaml", seeds)
        doc = read_results(asked, ROOT, ["full"])
        assert doc.command == f"vitcli ablate mine.yaml{words} --only full"
        assert [row.variant for row in doc.rows] == ["full"]
        assert doc.num_comparisons == 1, "what is not shown still counts for Holm"


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [([0.6, 0.7], [0.9, 0.5], 0.002), ([0.6, 0.6], [0.9, None], 0.001), ([0.6, 0.7], [0.9], None)],
    ids=["not the best on test", "a setting diverged", "a trial is missing"],
)
def test_the_setting_with_the_best_validation_accuracy_is_chosen(here, first, second, chosen):
    accuracies = {0.001: 0.5, 0.002: 0.25, None: None}
    for lr, scores in ((0.001, first), (0.002, second)):
        changes = {"data.val_split": 1000, "optim.lr": lr}
        for seed, val in enumerate(scores):
            state = "finished" if val is not None else "diverged"
            folder, result = ROOT / f"full/lr={lr}/seed{seed}", {"val_accuracy": val}
            options = {"folder": folder, "state": state, "changes": changes, "result": result}
            fabricate("full", seed, accuracies[lr], **options)
    doc = read_results(write_study(TUNED), ROOT)
    row = doc.rows[0]
    assert row.chosen == (None if chosen is None else {"optim.lr": chosen})
    assert {trial.test_score for trial in row.trials} == {accuracies[chosen]}
    assert row.candidates[0].val_accuracy == pytest.approx(np.mean(first))
    assert row.candidates[1].num_diverged == second.count(None)
    assert "optim.lr" not in doc.base_config
    assert "data.val_split" in doc.base_config


def test_a_free_worker_takes_the_next_trial():
    assert seconds_left([3.0, 3.0, 3.0], 0, [], 2) == 6.0, "the third trial waits"
    assert seconds_left([4.0, 1.0, 2.0, 1.0], 0, [], 2) == 4.0, "a worker trains three short ones"
    assert seconds_left([1.0, 2.0], 2, [4.0, 6.0], 2) == 7.0, "waiting trials take the usual time"
    assert seconds_left([], 3, [], 2) is None, "nothing is known yet"


@pytest.fixture
def dry_runs(monkeypatch) -> list[str]:
    """The variants of the dry runs, each of 1000 s."""
    variants: list[str] = []

    def dry_run(experiment, request):
        variants.append(experiment.variant)
        return SimpleNamespace(total=1000.0, memory_bytes=1)

    monkeypatch.setattr(estimate, "dry_run", dry_run)
    return variants


def test_the_time_of_a_study_is_that_of_a_dry_run_of_each_variant(study, dry_runs):
    plan = plan_study(study, ROOT, ())
    costs = dry_run_study(plan, Options(jobs=1, device="cpu"), print, spent_seconds=3.0)
    assert costs.by_variant == {"full": 1000.0, "no-norm": 1000.0}
    assert costs.total == 2 * 3.0 + 1000.0 * len(plan.trials), "study and worker start first"
    assert sorted(dry_runs) == ["full", "no-norm"], "one of each variant"
