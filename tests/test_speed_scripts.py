"""How experiments/gpu/stages.py runs stages; tests/gpu_stub/test_errors.py runs measure.sh."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "experiments" / "gpu"
FACTS = {"hardware": "a GPU", "torch": "2", "commit": "abc", "data_hash": "123"}


@pytest.fixture
def stages(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("stages")


def run(stages, out, commands, **options):
    """Run a stage of parts: name -> the words of python, of which the first is code."""
    out.mkdir(exist_ok=True)
    parts = [
        stages.Part(name=name, command=[sys.executable, "-c", *words], uses_data=name == "data")
        for name, words in commands.items()
    ]
    done = stages.StageRunner(out, FACTS, **options).run(stages.Stage("stage", 1000.0, parts))
    return str(done), {name: json.loads((out / f"{name}.json").read_text()) for name in commands}


def test_a_failed_part_is_run_again_and_what_is_done_only_if_it_is_asked(stages, tmp_path):
    out, count = tmp_path / "out", tmp_path / "count"
    commands = {
        "one": [f"open({str(count)!r}, 'a').write('x'); print(0)"],
        "bad": ["print('half'); raise ValueError('no such thing')"],
        "two": ["print(2)"],
    }
    for again, runs in ((False, 1), (False, 1), (True, 2)):
        done, stored = run(stages, out, commands, again=again)
        assert done.startswith("failed: bad (")
        assert len(count.read_text()) == runs
    assert (stored["one"]["result"], stored["two"]["result"]) == (0, 2)
    assert stored["bad"]["reason"] == "ValueError: no such thing"
    assert "Traceback" in (out / "bad.log").read_text()


def test_a_result_names_the_circumstances_and_no_folder(stages, tmp_path):
    out, data = tmp_path / "out", str(tmp_path / "data")
    code = "import sys, os; open(sys.argv[1], 'w').write('[\"%s/x\", \"/usr/y\"]' % os.getcwd())"
    other = ['import sys; print(\'{"run": "%s"}\' % sys.argv[1])', f"{out}/runs"]
    commands = {"data": [code, "RESULT", data], "other": other}
    stored = run(stages, out, commands, places={data: "DATA"})[1]
    assert stored["data"] | FACTS == stored["data"]
    assert (stored["data"]["result"], bool(stored["data"]["date"])) == (["x", "y"], True)
    assert stored["data"]["command"].endswith("RESULT DATA")
    assert stored["other"]["result"] == {"run": "OUT/runs"}
    assert stored["other"]["data_hash"] is None, "it used no data"
    for path in out.iterdir():
        for hidden in (str(tmp_path), str(stages.ROOT), sys.executable):
            assert hidden not in path.read_text()
