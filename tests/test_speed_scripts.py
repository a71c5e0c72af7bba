"""How experiments/speed/stages.py runs stages; tests/gpu_stub/test_errors.py runs all of gpu.sh."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).parents[1] / "experiments" / "speed"


FACTS = {"hardware": "a GPU", "torch": "2", "commit": "abc", "data_hash": "123"}
ENDLESS = """
import signal, sys, time
def save(*_):
    open(sys.argv[1] + ".saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1], "w").close()
while True: time.sleep(60)
"""


@pytest.fixture
def stages(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
    return importlib.import_module("stages")


def part(stages, name, code, *words, **options):
    return stages.Part(name=name, command=[sys.executable, "-c", code, *words], **options)


def run(stages, out, *parts, seconds=1000.0, **options):
    out.mkdir(exist_ok=True)
    runner = stages.StageRunner(out, FACTS, **options)
    return str(runner.run(stages.Stage("stage", seconds, list(parts))))


def stored(out, name):
    return json.loads((out / f"{name}.json").read_text())


def test_a_failed_part_does_not_lose_the_others(stages, tmp_path):
    out = tmp_path / "out"
    one = part(stages, "one", "print(1)")
    bad = part(stages, "bad", "print('half'); raise ValueError('no such thing')")
    two = part(stages, "two", "print(2)")
    assert run(stages, out, one, bad, two).startswith("failed: bad (")
    assert [stored(out, name)["result"] for name in ("one", "two")] == [1, 2]
    assert stored(out, "bad")["reason"] == "ValueError: no such thing"
    assert "Traceback" in (out / "bad.log").read_text()


def test_what_is_done_is_not_run_again_unless_asked(stages, tmp_path):
    out, count = tmp_path / "out", tmp_path / "count"
    code = f"open({str(count)!r}, 'a').write('x'); print(0)"
    for again, runs in ((False, 1), (False, 1), (True, 2)):
        assert run(stages, out, part(stages, "one", code), again=again) == "done"
        assert len(count.read_text()) == runs
    run(stages, out, part(stages, "one", code, "--other"))
    assert len(count.read_text()) == 3, "another command"


def test_a_budget_stops_a_part_which_continues_at_the_next_call(stages, tmp_path):
    """The time jumps as soon as the command has begun, so no clock decides."""
    out, begun = tmp_path / "out", tmp_path / "begun"
    endless = part(stages, "one", ENDLESS, str(begun), progress=lambda: "epoch 3 of 9")
    later = part(stages, "two", "print(2)")
    text = run(stages, out, endless, later, clock=lambda: 2000.0 * begun.exists())
    assert text == "partly, left: one (epoch 3 of 9), two"
    assert stored(out, "one")["state"] == "stopped"
    assert begun.with_name("begun.saved").exists(), "it had time to save its state"
    assert not (out / "two.json").exists()
    ends = part(stages, "one", "print(1)", str(begun))
    assert run(stages, out, ends, later) == "done"


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
