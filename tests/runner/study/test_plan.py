"""The plan of a study: which trials are trained, how many at once, and how long they take."""

from types import SimpleNamespace

import pytest
import torch

from tests.runner.study.trials import ROOT, fabricate, save_all, write_study
from vitcli.runner.study import gpu_memory
from vitcli.runner.study.gpu_memory import WORKER_BYTES, limit_workers
from vitcli.runner.study.plan import Options, estimate_study, plan_study, total_seconds
from vitcli.runner.study.saved import SAVED, SavedTrials

GIB = 2**30
FREE = {"bytes": 0}


def test_a_rerun_trains_only_the_named_variants(study):
    for variant in ("full", "no-norm"):
        fabricate(variant, 0)
    plan = plan_study(study, ROOT, (), rerun=("no-norm",))
    assert plan.replaced == {"no-norm/seed0"}
    folders = [trial.folder for trial in plan.trials]
    assert folders == ["no-norm/seed0", "full/seed1", "no-norm/seed1"]


@pytest.mark.parametrize(
    ("trials", "count", "total"),
    [
        ([3.0, 3.0, 3.0], 2, 6.0),  # the third trial waits
        ([4.0, 1.0, 2.0, 1.0], 2, 4.0),  # one worker trains three short trials
        ([], 1, 0.0),
    ],
)
def test_a_free_worker_takes_the_next_trial(trials, count, total):
    assert total_seconds(trials, count) == total


def test_an_estimate_does_not_use_another_machines_times(study, monkeypatch):
    fabricate("full", 0, result={"train_seconds": 3.0})
    save_all(study)
    estimate = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("vitcli.runner.train.estimate.make_estimate", lambda *_: estimate)
    options = Options(jobs=1, device="cpu")
    own = estimate_study(plan_study(study, ROOT, ()), options)
    assert own.by_variant == {"full": 3.0, "no-norm": 1000.0}
    ROOT.rename("elsewhere")
    plan = plan_study(study, ROOT, (), saved=SavedTrials(SAVED))
    found = estimate_study(plan, options, spent_seconds=3.0)
    assert found.by_variant["full"] == 1000.0
    assert found.total == 2 * 3.0 + 1000.0 * len(plan.trials), "study and worker start first"


@pytest.fixture
def measured(monkeypatch):
    """Names of the measured variants; a GPU with 10 GiB free, of which a trial needs 2 GiB."""
    names: list[str] = []

    def make_estimate(experiment, device):
        names.append(experiment.variant)
        return SimpleNamespace(memory_bytes=2 * GIB - WORKER_BYTES)

    monkeypatch.setattr(gpu_memory, "pick_device", torch.device)
    monkeypatch.setattr(gpu_memory, "make_estimate", make_estimate)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE["bytes"], 80 * GIB))
    return names


@pytest.mark.parametrize(
    ("device", "jobs", "free", "count"),
    [
        *(("cuda", 8, *case) for case in ((10, 8), (8, 8), (5, 2), (1, 1))),
        *(("cpu", 8, 1, 8), ("cuda", 1, 1, 1)),
    ],
)
def test_as_many_trials_as_fit_are_trained_at_once(here, measured, device, jobs, free, count):
    FREE["bytes"] = free * GIB
    text = "base: quickstart\nseeds: [0, 1]\nvariants: {full: {}, wide: {model.embed_dim: 128}}\n"
    plan = plan_study(write_study(text), ROOT, ())
    messages: list[str] = []
    assert limit_workers(plan, Options(device=device), jobs, messages.append) == count
    is_measured = (device, jobs) == ("cuda", 8)
    assert measured == (["wide"] if is_measured else []), "the largest variant"
    assert bool(messages) == (count < jobs)
