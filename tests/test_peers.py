"""The rules of experiments/speed/peers.py, with fake contenders."""

import importlib.util
import json
import math
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

SCRIPT = Path(__file__).parents[1] / "experiments" / "speed" / "peers.py"
STOPPED = signal.SIGSTOP << 8 | 0x7F
"""What waitpid returns for a process that waits for its next turn."""
SECONDS = {"vitcli auto": 1.0, "timm fp32": 2.0, "timm bf16": 1.0}
"""Job -> seconds of a step; all others take 4."""


@pytest.fixture
def script(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # it imports another script
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def peers(script, monkeypatch):
    """The script with fake contenders."""
    monkeypatch.setattr(script, "versions", dict)
    monkeypatch.setattr(script, "Contender", FakeContender)
    FakeContender.seconds, FakeContender.started = dict(SECONDS), []
    return script


def name_of(job):
    return f"{job['name']} {job['precision']}"


class FakeContender:
    """A contender whose steps take ``seconds`` by definition."""

    seconds: dict[str, float]
    started: list["FakeContender"]

    def __init__(self, job):
        self.job, self.speeds, self.is_stopped = job, [], False
        self.each = self.seconds.get(name_of(job), 4.0)
        self.started.append(self)

    def run(self, steps, limit=None):
        assert not self.is_stopped
        return steps * self.each

    def stop(self):
        self.is_stopped = True

    def row(self):
        facts = {"memory": 1, "kernels": "torch", "turns": list(self.speeds)}
        return self.job | facts | {"images_per_second": self.speeds[-1]}


def compare(peers, monkeypatch, output, *words):
    command = ["peers.py", "--models", "tiny", "--parts", "step", "--rounds", "3", "-o", output]
    monkeypatch.setattr(sys, "argv", [*map(str, command), *words])
    peers.main()
    return json.loads(output.read_text())


@pytest.mark.parametrize("seconds", [10.0, math.inf])
def test_a_mode_that_is_five_times_slower_is_skipped_and_named(
    peers, monkeypatch, tmp_path, capsys, seconds
):
    FakeContender.seconds["timm fp32"] = 2.0
    FakeContender.seconds["timm bf16"] = seconds
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json")
    (skipped,) = [each for each in row["contenders"] if "skipped" in each]
    assert name_of(skipped) == "timm bf16"
    assert ("over 5 times" if math.isinf(seconds) else "5 times") in skipped["skipped"]
    assert row["peer"] == "timm fp32"
    assert row["ratio"] == 2.0
    assert f"skipped timm bf16: {skipped['skipped']}" in capsys.readouterr().out
    assert all(contender.is_stopped for contender in FakeContender.started)


def test_a_mode_that_is_less_than_five_times_slower_is_measured(peers, monkeypatch, tmp_path):
    FakeContender.seconds["timm bf16"] = 9.9
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json")
    assert len(row["contenders"]) == 9
    assert not any("skipped" in each for each in row["contenders"])


def test_the_first_mode_can_be_the_slow_one(peers, monkeypatch, tmp_path):
    FakeContender.seconds["timm fp32"] = 5.0
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json")
    assert row["peer"] == "timm bf16"
    assert [name_of(each) for each in row["contenders"] if "skipped" in each] == ["timm fp32"]


def test_a_skipped_mode_is_not_started_again(peers, monkeypatch, tmp_path):
    FakeContender.seconds["timm bf16"] = math.inf
    rows = compare(peers, monkeypatch, tmp_path / "peers.json", "--models", "tiny,small")
    assert [sum("skipped" in each for each in row["contenders"]) for row in rows] == [1, 1]
    assert [name_of(each.job) for each in FakeContender.started].count("timm bf16") == 1


def test_a_killed_measurement_leaves_the_rounds_it_finished(peers, monkeypatch, tmp_path):
    class Dying(FakeContender):
        def run(self, steps, limit=None):
            if len(self.speeds) == 2:
                raise KeyboardInterrupt
            return super().run(steps, limit)

    monkeypatch.setattr(peers, "Contender", Dying)
    output = tmp_path / "peers.json"
    with pytest.raises(KeyboardInterrupt):
        compare(peers, monkeypatch, output)
    (row,) = json.loads(output.read_text())
    assert row["repetitions"] == 2
    assert len(row["contenders"][1]["turns"]) == 2


def test_the_file_names_the_cpu_and_what_limits_it(peers, monkeypatch, tmp_path):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setattr(peers, "cpu_kind", lambda: "avx2")
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json")
    assert row["cpu"]["kind"] == "avx2"
    assert "ATEN_CPU_CAPABILITY=avx2" in row["cpu"]["limits"]
    assert row["cpu"]["capability"]


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_a_peer_that_fails_is_skipped_and_named(peers, monkeypatch, tmp_path, capsys, runs):
    """It fails at its first steps, at the steps that are timed, or in a round."""

    class Failing(FakeContender):
        def run(self, steps, limit=None):
            self.runs = getattr(self, "runs", 0) + 1
            if self.job["name"] == "timm" and self.runs > runs:
                raise peers.ContenderError("ModuleNotFoundError: No module named 'timm'")
            return super().run(steps, limit)

    monkeypatch.setattr(peers, "Contender", Failing)
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json")
    assert "timm" not in row["ratios"]
    assert len(row["ratios"]) == 3
    assert len(row["contenders"]) == 9
    said = capsys.readouterr().out
    assert said.count("failed: ModuleNotFoundError: No module named 'timm'") == 2, "fp32 and bf16"
    assert all(contender.is_stopped for contender in FakeContender.started)


def test_a_comparison_needs_vitcli_and_a_peer(peers, monkeypatch, tmp_path):
    class Failing(FakeContender):
        def run(self, steps, limit=None):
            raise peers.ContenderError("no memory")

    monkeypatch.setattr(peers, "Contender", Failing)
    with pytest.raises(SystemExit, match="nothing to compare: vitcli auto: it failed: no memory;"):
        compare(peers, monkeypatch, tmp_path / "peers.json")


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--models", "giant"], "no 'giant'; choose from tiny, small, base", 2),
        (["--parts", "walk"], "no 'walk'; choose from step, end_to_end", 2),
        (["--rounds", "0"], "--rounds takes a number from 1", 2),
        (["--data", "nowhere"], "error: cifar10 is not in nowhere", 4),
        (["--device", "tpu"], "error: --device tpu", 2),
    ],
)
def test_bad_input_is_refused_in_a_line(peers, monkeypatch, tmp_path, capsys, words, said, code):
    with pytest.raises(SystemExit) as stopped:
        compare(peers, monkeypatch, tmp_path / "peers.json", *words)
    assert stopped.value.code == code
    assert said in capsys.readouterr().err


def test_one_precision_for_all(peers, monkeypatch, tmp_path):
    (row,) = compare(peers, monkeypatch, tmp_path / "peers.json", "--precision", "bf16")
    assert [each.job["precision"] for each in FakeContender.started] == ["bf16"] * 5
    assert row["peer"] == "timm bf16"


def test_an_ended_contender_says_its_last_line(script, monkeypatch, tmp_path):
    program = tmp_path / "contender.py"
    program.write_text("import nothing_that_exists\n")
    monkeypatch.setattr(script, "CONTENDER", program)
    contender = script.Contender({"name": "timm", "precision": "bf16"})
    with pytest.raises(script.ContenderError, match="No module named 'nothing_that_exists'"):
        contender.run(1, HANG)
    contender.stop()


@pytest.mark.parametrize(
    ("answer", "limit", "seconds"), [("pass", 0, math.inf), ("print('{\"seconds\": 3}')", HANG, 3)]
)
def test_a_contender_is_not_waited_for_beyond_its_limit(
    script, monkeypatch, tmp_path, answer, limit, seconds
):
    program = tmp_path / "contender.py"
    program.write_text(f"import sys\nsys.stdin.readline()\n{answer}\nsys.stdout.flush()\ninput()\n")
    monkeypatch.setattr(script, "CONTENDER", program)
    contender = script.Contender({"name": "timm", "precision": "bf16"})
    assert contender.run(1, limit) == seconds
    assert os.waitpid(contender.process.pid, os.WUNTRACED)[1] == STOPPED
    contender.stop()
    assert contender.process.returncode < 0
