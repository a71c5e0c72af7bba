"""Fewer trials are trained at once if the memory of the GPU does not hold all of them."""

from types import SimpleNamespace

import pytest
import torch

from vitcli.runner.study import gpu_memory
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.gpu_memory import WORKER_BYTES, limit_workers
from vitcli.runner.study.plan import Options, plan_study

GIB = 2**30
STUDY = "base: tiny.yaml\nseeds: [0, 1]\nvariants: {full: {}, wide: {model.embed_dim: 64}}\n"
FREE = {"bytes": 0}


@pytest.fixture
def plan(tiny, here):
    (here / "mine.yaml").write_text(STUDY)
    return plan_study(load_study("mine.yaml"), here / "runs" / "mine", ())


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
    FREE["bytes"] = 10 * GIB
    return names


@pytest.mark.parametrize(("free", "count"), [(10, 8), (8, 8), (5, 2), (1, 1)])
def test_as_many_trials_as_fit_are_trained_at_once(plan, measured, free, count):
    FREE["bytes"] = free * GIB
    messages: list[str] = []
    assert limit_workers(plan, Options(device="cuda"), 8, messages.append) == count
    assert measured == ["wide"], "the largest variant"
    if count == 8:
        assert messages == []
    else:
        need = f"note: 4 trials at once need about 8.0 GiB of cuda, and {free}.0 GiB are free"
        assert messages == [f"{need}; training {count} at once"]


@pytest.mark.parametrize(("device", "jobs"), [("cpu", 8), ("cuda", 1)])
def test_a_cpu_and_a_single_worker_are_not_measured(plan, measured, device, jobs):
    assert limit_workers(plan, Options(device=device), jobs, pytest.fail) == jobs
    assert measured == []
