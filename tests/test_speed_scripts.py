"""How experiments/speed/stages.py runs stages; tests/gpu_stub/test_errors.py runs all of gpu.sh."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).parents[1] / "experiments" / "speed"


FACTS = {"hardware": "a GPU", "torch": "2", "commit": "abc", "data_hash": "123"}


@pytest.fixture
def stages(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
    return importlib.import_module("stages")


def part(stages, name, code, *words, uses_data=False):
    command = [sys.executable, "-c", code, *words]
    return stages.Part(name=name, command=command, uses_data=uses_data)


def run(stages, out, *parts, **options):
    out.mkdir(exist_ok=True)
    runner = stages.StageRunner(out, FACTS, **options)
    return str(runner.run(stages.Stage("stage", 1000.0, list(parts))))


def stored(out, name):
    return json.loads((out / f"{name}.json").read_text())


def test_a_failed_part_is_run_again_and_what_is_done_only_if_it_is_asked(stages, tmp_path):
    out, count = tmp_path / "out", tmp_path / "count"
    one = part(stages, "one", f"open({str(count)!r}, 'a').write('x'); print(0)")
    bad = part(stages, "bad", "print('half'); raise ValueError('no such thing')")
    two = part(stages, "two", "print(2)")
    for again, runs in ((False, 1), (False, 1), (True, 2)):
        assert run(stages, out, one, bad, two, again=again).startswith("failed: bad (")
        assert len(count.read_text()) == runs
    assert [stored(out, name)["result"] for name in ("one", "two")] == [0, 2]
    assert stored(out, "bad")["reason"] == "ValueError: no such thing"
    assert "Traceback" in (out / "bad.log").read_text()


def test_a_result_names_the_circumstances_and_no_folder(stages, tmp_path):
    out = tmp_path / "out"
    data = tmp_path / "data"
    code = "import sys, os; open(sys.argv[1], 'w').write('[\"%s/x\", \"/usr/y\"]' % os.getcwd())"
    one = part(stages, "one", code, "RESULT", str(data), uses_data=True)
    two = part(stages, "two", 'import sys; print(\'{"run": "%s"}\' % sys.argv[1])', f"{out}/runs")
    run(stages, out, one, two, places={str(data): "DATA"})
    found = stored(out, "one")
    assert found | FACTS == found
    assert found["result"] == ["x", "y"]
    assert found["command"].endswith("RESULT DATA")
    assert found["date"]
    assert stored(out, "two")["result"] == {"run": "OUT/runs"}
    assert stored(out, "two")["data_hash"] is None, "it used no data"
    for path in out.iterdir():
        for hidden in (str(tmp_path), str(stages.ROOT), sys.executable):
            assert hidden not in path.read_text()
