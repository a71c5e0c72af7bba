"""experiments/speed/ratios.py compares with the committed ratios of this kind of CPU."""

import importlib
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from vitcli.runner.errors import CheckError, InputError
from vitcli.runner.machine.processor import cpu_kind

SPEED = Path(__file__).parents[2] / "experiments" / "speed"


@pytest.fixture
def ratios(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
    return importlib.import_module("ratios")


@pytest.fixture
def measured(ratios, monkeypatch, tmp_path):
    """Measured ratios of an avx2 machine without measuring, and a copy of the committed ones."""
    found = {"kind": "avx2", "setting": "fp32", "ratios": {"step": 2.0, "data": 10.0}}
    committed = {"amx": {"setting": "bf16", "ratios": {"step": 9.0, "data": 90.0}}}
    monkeypatch.setattr(ratios, "cpu_kind", lambda: found["kind"])
    monkeypatch.setattr(ratios, "measure_ratios", lambda *_, **__: found)
    monkeypatch.setattr(ratios, "COMMITTED", tmp_path / "ratios.json")
    ratios.COMMITTED.write_text(json.dumps(committed))
    return found


def test_each_kind_of_cpu_is_compared_with_its_own_ratios(ratios, measured):
    compare = partial(ratios.compare, "cpu", 1, 0.0, save=False)
    compare(save=True)
    assert list(ratios.committed_ratios()) == ["amx", "avx2"]
    measured["ratios"]["step"] = 1.7  # 15 % slower is noise
    compare()
    measured["ratios"]["step"] = 1.5
    with pytest.raises(CheckError, match=r"step \(committed: fp32\)"):
        compare()
    measured["kind"] = "amx"
    with pytest.raises(CheckError, match=r"data; step \(committed: bf16\)"):
        compare()


def test_a_kind_without_ratios_is_refused_before_the_measurement(ratios, measured, monkeypatch):
    monkeypatch.setattr(ratios, "measure_ratios", None)
    monkeypatch.setattr(sys, "argv", ["ratios.py", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        ratios.main()
    assert stopped.value.code == InputError.exit_code


@pytest.mark.slow
def test_the_ratios_are_measured(ratios):
    before = torch.get_num_threads()
    found = ratios.measure_ratios("cpu", rounds=1, seconds=0.0, on_message=print)
    assert len(found["ratios"]) == 4
    assert all(value > 0 for value in found["ratios"].values())
    assert found["kind"] == cpu_kind()
    assert "2 threads" in found["setting"]
    assert torch.get_num_threads() == before
