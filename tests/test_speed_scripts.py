"""Scripts in experiments/speed/; tests/gpu_stub/test_errors.py runs all stages of gpu.sh.

The rules of peers.py are tried with fake contenders, the stages of gpu.py with made-up commands.
"""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

SPEED = Path(__file__).parents[1] / "experiments" / "speed"
STOPPED = signal.SIGSTOP << 8 | 0x7F
"""What waitpid returns for a process that waits for its next turn."""
SECONDS = {"vitcli auto": 1.0, "timm fp32": 2.0, "timm bf16": 1.0}
"""Job -> seconds of a step; all others take 4."""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch) -> None:
    """Let scripts of the folder be imported."""
    monkeypatch.syspath_prepend(str(SPEED))


@pytest.fixture
def script():
    """The script that compares with peers."""
    return importlib.import_module("peers")


def name_of(job):
    return f"{job['name']} {job['precision']}"


class FakeContender:
    """A contender whose steps take ``seconds`` by definition."""

    seconds: dict[str, float]

    def __init__(self, job):
        self.job, self.speeds, self.is_stopped = job, [], False
        self.each = self.seconds.get(name_of(job), 4.0)

    def run(self, steps, limit=None):
        assert not self.is_stopped
        return steps * self.each

    def stop(self):
        self.is_stopped = True

    def row(self):
        facts = {"memory": 1, "kernels": "torch", "turns": list(self.speeds)}
        return self.job | facts | {"images_per_second": self.speeds[-1]}


@pytest.fixture
def compare(script, monkeypatch, tmp_path):
    """A function that runs the script with fake contenders; it takes the seconds of one."""
    output = tmp_path / "peers.json"

    def compare(seconds):
        FakeContender.seconds = SECONDS | {"timm bf16": seconds}
        monkeypatch.setattr(script, "versions", dict)
        monkeypatch.setattr(script, "Contender", FakeContender)
        command = ["peers.py", "--models", "tiny", "--parts", "step", "--rounds", "3", "-o", output]
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        script.main()
        return json.loads(output.read_text())

    return compare


def test_a_mode_that_is_five_times_slower_is_skipped_and_named(compare, capsys):
    (row,) = compare(9.9)
    assert not any("skipped" in each for each in row["contenders"])
    (row,) = compare(math.inf)
    (skipped,) = [each for each in row["contenders"] if "skipped" in each]
    assert name_of(skipped) == "timm bf16"
    assert (row["peer"], row["ratio"]) == ("timm fp32", 2.0)
    assert f"skipped timm bf16: {skipped['skipped']}" in capsys.readouterr().out


def test_a_contender_is_not_waited_for_beyond_its_limit(script, monkeypatch, tmp_path):
    program = tmp_path / "contender.py"
    monkeypatch.setattr(script, "CONTENDER", program)
    for line, limit, seconds in (("pass", 0, math.inf), ("print('{\"seconds\": 3}')", HANG, 3)):
        program.write_text(f"import sys\nsys.stdin.readline()\n{line}\nsys.stdout.flush()\ninput()")
        contender = script.Contender({"name": "timm", "precision": "bf16"})
        assert contender.run(1, limit) == seconds
        assert os.waitpid(contender.process.pid, os.WUNTRACED)[1] == STOPPED
        contender.stop()
        assert contender.process.returncode < 0


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
def stages():
    """The script that runs stages."""
    return importlib.import_module("stages")


def part(stages, name, code, *words, **options):
    return stages.Part(name=name, command=[sys.executable, "-c", code, *words], **options)


def run(stages, out, *parts, seconds=1000.0, **options):
    """Run one stage of these parts, and return the outcome as text."""
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


@pytest.mark.slow
def test_without_data_the_trainings_are_skipped_and_the_exit_code_says_so(here, environment):
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment |= {"OUT": str(here / "out"), "DATA": str(here), "PATH": path}
    command = ["bash", str(SPEED / "gpu.sh"), "small", "ablation"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout.count("skipped: DATA: ") == 2
    assert not list((here / "out").glob("**/small*"))


@pytest.mark.slow
def test_a_large_study_is_made_and_timed(here, environment):
    script = [sys.executable, str(SPEED / "large_study.py"), "--variants", "2", "--seeds", "3"]
    subprocess.run([*script, "-o", "large.json"], env=environment, check=True)
    found = json.loads(Path("large.json").read_text())
    assert found["trials"] == 6
    assert {"status", "table", "page of runs", "plan", "report"} == found["seconds"].keys()
