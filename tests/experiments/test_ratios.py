"""experiments/speed/ratios.py compares with the committed ratios of this kind of CPU."""

import importlib
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from vitcli.runner.errors import CheckError, InputError

SPEED = Path(__file__).parents[2] / "experiments" / "speed"


@pytest.fixture
def ratios(monkeypatch, tmp_path):
    """The script on an avx2 machine, with measured and committed ratios made by hand."""
    monkeypatch.syspath_prepend(str(SPEED))
    script = importlib.import_module("ratios")
    script.found = {"kind": "avx2", "setting": "fp32", "ratios": {"step": 2.0, "data": 10.0}}
    committed = {"amx": {"setting": "bf16", "ratios": {"step": 9.0, "data": 90.0}}}
    monkeypatch.setattr(script, "cpu_kind", lambda: script.found["kind"])
    monkeypatch.setattr(script, "measure_ratios", lambda *_, **__: script.found)
    monkeypatch.setattr(script, "COMMITTED", tmp_path / "ratios.json")
    script.COMMITTED.write_text(json.dumps(committed))
    return script


def test_each_kind_of_cpu_is_compared_with_its_own_ratios(ratios, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ratios.py", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        ratios.main()
    assert stopped.value.code == InputError.exit_code, "a kind without ratios"
    compare = partial(ratios.compare, "cpu", 1, 0.0, save=False)
    compare(save=True)
    assert list(ratios.committed_ratios()) == ["amx", "avx2"]
    ratios.found["ratios"]["step"] = 1.7  # 15 % slower is noise
    compare()
    ratios.found["ratios"]["step"] = 1.5
    with pytest.raises(CheckError, match="step"):
        compare()
    ratios.found["kind"] = "amx"
    with pytest.raises(CheckError, match="data; step"):
        compare()
