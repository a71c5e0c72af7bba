"""`vitcli bench`: every figure is measured, wrong input is answered."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import DeviceType

from tests.cli import commands
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.plugins.bench import training
from vitcli.plugins.bench.attention import fit_exponent
from vitcli.plugins.bench.training import costliest, turns

document = partial(commands.document, "bench")
QUICK = ("--rounds", "2", "--seconds", "0")
SMALL = ("-s", "model.depth=1", "-s", "model.embed_dim=16", "-s", "model.num_heads=2")
TINY = (*SMALL, "-s", "train.batch_size=8", *QUICK)


@pytest.fixture(autouse=True)
def small(here, monkeypatch) -> None:
    """Measure the peak of this machine with small products, five times."""
    for name, value in {"PEAK_SECONDS": 0, "MATMUL_SIDE": {"cpu": 512}}.items():
        monkeypatch.setattr(training, name, value)


def test_training():
    found = document("train", *TINY)
    assert found["images_per_second"] == pytest.approx(8 / found["step_seconds"])
    assert found["epoch_seconds"] == pytest.approx(1250 * found["step_seconds"])  # 10,000 images
    assert found["data_share"] > 0
    assert 0 < found["flops_per_second"] < found["matmul_peak"]
    pretraining = document("train", *TINY, "-s", "task.name=mae", "-s", "model.pool=mean")
    assert pretraining["flops_per_image"] != pytest.approx(found["flops_per_image"], rel=0.1)
    assert found["matmul_share"] * found["matmul_peak"] == pytest.approx(found["flops_per_second"])
    assert found["peak_memory_bytes"] > 2**26


def test_inference_in_fp32_is_that_of_eval(monkeypatch):
    fused, compute = [], F.scaled_dot_product_attention

    def spy(q, *args, **kwargs):
        fused.append(q.dtype)
        return compute(q, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    as_trained = ("--precision", "bf16", "-s", "train.kernels=torch")
    rows = document("inference", *SMALL, *QUICK, *as_trained)["rows"]
    assert {*fused} == {torch.float32}, "a training in bf16 on a CPU uses plain products"
    for row in rows:
        assert row["images_per_second"] == pytest.approx(row["batch_size"] / row["seconds"])


def test_attention_keeps_quadratic_memory_unless_it_is_fused():
    sizes = ("--embed-dim", "8", "--num-heads", "2", "--batch-size", "1")
    words = ("attention", *sizes, *QUICK, "--lengths")
    found = document(*words, "1024,512,2048", "--precision", "fp32")
    rows = {(row["attention"], row["kernels"]): row for row in found["rows"]}
    assert {name for name, _ in rows} == ATTENTIONS.keys()
    growth = {name: row["memory_exponent"][0] for name, row in rows.items()}
    assert 1.7 < growth["softmax", "plain"] <= 2.0
    assert 0.9 < growth["softmax", "fused"] < 1.1
    assert 1.0 < growth["strided", "plain"] < 1.6
    assert all(growth[name, "plain"] < 1.1 for name in ATTENTIONS.keys() - {"softmax", "strided"})
    assert [point["tokens"] for point in found["rows"][0]["points"]] == [512, 1024, 2048]
    commands.said(0, "bench", *words, "8,16", "-o", "growth.svg")
    assert all(name in Path("growth.svg").read_text() for name in ATTENTIONS)


def test_profile_names_the_costliest_operators_and_keeps_the_trace(here):
    found = document("train", *TINY, "--precision", "fp32", "--trace", "-o", "steps.json")
    shares = [row["share"] for row in found["profile"]]
    assert shares == sorted(shares, reverse=True)
    assert 0.3 < sum(shares) <= 1
    assert json.loads((here / "steps.json").read_text())["traceEvents"]


def test_a_kernel_of_a_gpu_counts_once():
    def event(key: str, device_type: DeviceType, time: float, is_range: bool = False) -> Any:
        fields = {"device_type": device_type, "self_device_time_total": time, "count": 5}
        return SimpleNamespace(key=key, is_user_annotation=is_range, **fields)

    on_cpu, on_gpu = DeviceType.CPU, DeviceType.CUDA
    events = [event("copy", on_gpu, 10), event("gemm", on_gpu, 30)]
    events += [event("step", on_gpu, 40, True), event("aten::mm", on_cpu, 30)]
    rows = costliest(events, on_gpu=True)
    assert [(row["operator"], row["share"]) for row in rows] == [("gemm", 0.75), ("copy", 0.25)]


def test_turns_alternate_and_slopes_are_exponents():
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = turns(works, torch.device("cpu"), rounds=3, seconds=0)
    assert "".join(calls) == "aabb" + 3 * "ab"
    assert len(found["a"]) == 3
    exact = fit_exponent([(n, 5 * n**1.5) for n in (64, 512, 1024, 2048, 4096)])
    assert exact == pytest.approx((1.5, 0.0), abs=1e-9)
    assert fit_exponent([(512, 1.0), (1024, 2.0)]) is None, "two points leave nothing to judge by"
    bent = fit_exponent([(n, n * (1 + (n == 1024))) for n in (512, 1024, 2048, 4096)])
    assert bent is not None
    assert bent[1] > 0.3, "an interval as wide as the points are off the line"
