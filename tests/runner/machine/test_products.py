"""Products are measured without a trace, and emulated bf16 is reported once."""

import itertools

import pytest
import torch

from tests.runner.machine.processors import AVX2, ZEN4
from vitcli.runner.machine import products
from vitcli.runner.machine.products import LARGE, THIN, measure_products, warn_if_emulated


@pytest.fixture
def small(monkeypatch) -> None:
    """Small products, so that tests are fast on a CPU that emulates bf16."""
    monkeypatch.setattr(products, "LARGE", (16, 16, 16))
    monkeypatch.setattr(products, "THIN", (32, 8, 8))
    monkeypatch.setattr(products, "SECONDS", 0.0)


def rate_of(monkeypatch, gflops: dict[str, float]) -> list[tuple]:
    """Let products have these speeds; return a list that receives the calls."""
    calls = []

    def rate(size, precision):
        calls.append((size, precision, torch.get_num_threads()))
        return 1e9 * gflops[precision]

    monkeypatch.setattr(products, "product_rate", rate)
    return calls


def test_measuring_draws_no_random_number(small):
    before = torch.get_rng_state()
    found = measure_products()
    assert torch.equal(torch.get_rng_state(), before)
    assert found.threads == torch.get_num_threads()
    assert all(rate > 0 for rate in (*found.rates.values(), *found.by_threads.values()))


def test_the_rate_is_the_median_of_calls(monkeypatch):
    clock = itertools.accumulate([0, 1.0, 0, 3.0, 0, 2.0, 0, 100.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(products, "SECONDS", 6.0)
    assert products.product_rate((10, 5, 2), "bf16") == 200 / 2.0


@pytest.mark.parametrize(("bf16", "has_large"), [(200.0, True), (1.6, False)])
def test_a_large_product_is_left_out_where_it_would_take_seconds(monkeypatch, bf16, has_large):
    calls = rate_of(monkeypatch, {"fp32": 80.0, "bf16": bf16})
    found = measure_products()
    assert (("bf16", LARGE) in found.rates) is has_large
    assert found.bf16_slowdown == 80.0 / bf16
    assert {(THIN, "fp32"), (LARGE, "fp32"), (THIN, "bf16")} <= {call[:2] for call in calls}


@pytest.mark.parametrize(
    ("cpu", "precision", "bf16", "told"),
    [
        (AVX2, "bf16", 1.25, "a product takes 64 times as long as in fp32; type --precision fp32"),
        (AVX2, "bf16", 50.0, "a product takes 1.6 times as long"),
        (AVX2, "bf16", 90.0, ""),
        (AVX2, "fp32", 1.25, ""),
        (AVX2, "auto", 1.25, ""),
        (ZEN4, "bf16", 1.25, ""),
    ],
)
def test_asking_for_emulated_bf16_warns(monkeypatch, cpu, precision, bf16, told):
    calls = rate_of(monkeypatch, {"fp32": 80.0, "bf16": bf16})
    monkeypatch.setattr(products, "this_processor", lambda: cpu)
    said: list[str] = []
    warn_if_emulated(precision, "cpu", said.append)
    assert told in "".join(said)
    assert len(said) == bool(told)
    if told:
        assert said[0].startswith("warning: this CPU emulates bf16: ")
    if (cpu, precision) != (AVX2, "bf16"):
        assert calls == [], "nothing is measured in vain"
