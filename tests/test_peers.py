"""The rules of experiments/speed/peers.py, with fake contenders."""

import importlib
import json
import math
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

SPEED = Path(__file__).parents[1] / "experiments" / "speed"
STOPPED = signal.SIGSTOP << 8 | 0x7F
"""What waitpid returns for a process that waits for its next turn."""
SECONDS = {"vitcli auto": 1.0, "timm fp32": 2.0, "timm bf16": 1.0}
"""Job -> seconds of a step; all others take 4."""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SPEED))
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
