"""Starting is quick; what people see fits their terminal, and what goes into a pipe is plain."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import save_picture, started, vitcli
from tests.fabricated import make_run, make_study_folder
from tests.patience import HANG
from tests.terminal import run_in_terminal
from vitcli.cli import console

pytestmark = pytest.mark.usefixtures("here")
LONG = "a-study-with-a-long-name/no-positional-encoding-and-more/seed0"


def test_a_terminal_wraps_and_a_pipe_does_not_whatever_columns_says(environment, monkeypatch):
    make_run(0, folder=Path("runs") / LONG)
    code, screen = run_in_terminal("runs", "ls", environment=environment, width=80)
    assert (code, f"\n{LONG}\n  data        scenes\n" in screen) == (0, True)
    assert max(len(line) for line in screen.splitlines() if "vitcli " not in line) <= 80
    wide = run_in_terminal("runs", "ls", environment=environment, width=200)[1]
    assert f"\n{LONG}  scenes  finished " in wide
    monkeypatch.setenv("COLUMNS", "60")
    assert f"\n{LONG}  scenes  finished " in vitcli("runs", "ls")[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
def test_a_full_disk_behind_stdout_is_an_error_and_no_traceback():
    with open("/dev/full", "w") as full:
        done = started("experiments", "ls", stdout=full)
    assert done.returncode == 5
    assert "error: the output: No space left on device" in done.stderr
    assert not re.search("Traceback|Exception ignored", done.stderr)


def test_a_row_of_csv_is_one_line_on_a_terminal(monkeypatch):
    name = "a picture with a long name, " + "and more " * 8 + ".png"
    pictures = [save_picture(each, (32, 32)) for each in (name, "another.png")]
    monkeypatch.setattr(console, "line_width", lambda stream=None: 60)
    monkeypatch.setattr("vitcli.cli.live.is_live", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, talk = vitcli("predict", "cifar10-pocket", *pictures, "--format", "csv")
    assert (code, "\x1b[" in talk) == (0, True), "progress is shown on a terminal"
    row = rf'^"{re.escape(name)}",\w+,[\d.]+,,,"{{.*}}",,cifar10-pocket@\w{{12}},1$'
    assert re.search(row, out, re.MULTILINE)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_gone_does_not_change_the_exit_code(here, stream):
    Path("runs/damaged").mkdir(parents=True)
    Path("runs/damaged/config.yaml").write_text("seed: [")
    reading, writing = os.pipe()
    os.close(reading)
    done = started("runs", "verify", "damaged", **{stream: writing})
    os.close(writing)
    assert done.returncode == 4, done.stderr
    assert not re.search("Traceback|Exception ignored", done.stderr or "")


PROBE = """
import os, sys
import vitcli.__main__
from vitcli.cli.main import main
for name in ("torch", "torchvision", "matplotlib", "scipy", "numpy", "tensorboard"):
    assert name not in sys.modules, name
from vitcli.version import __version__
for line in sys.stdin.read().splitlines():
    command, _, words = line.partition("#")
    sys.argv = ["vitcli", *command.split()]
    os.environ.pop("_VITCLI_COMPLETE", None)
    if words:
        os.environ |= {"_VITCLI_COMPLETE": "complete_bash", "COMP_WORDS": words.replace(" ", "\\n")}
        os.environ["COMP_CWORD"] = str(words.count(" "))
    try:
        main()
    except SystemExit:
        pass
    for name in ("torch", "torchvision", "matplotlib"):
        assert name not in sys.modules, (line, name)
"""
LIGHT = (
    *("--help", "--version", "train --help", "experiments --help", "experiments ls", "explain"),
    *("runs ls", "runs show quickstart", "runs page", "runs watch --once", "data --help"),
    *("#vitcli train c", "#vitcli eval "),
)
"""Commands, and lines to complete after ``#``."""


def test_what_only_reads_files_does_not_load_torch(here, environment):
    make_run(0)
    make_study_folder({"full/seed0": "finished"})
    streams = {"capture_output": True, "text": True, "input": "\n".join(LIGHT), "timeout": HANG}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, **streams)
    assert done.returncode == 0, done.stderr


def test_what_goes_into_a_pipe_is_plain(environment):
    asked = {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true"}
    for words, code in (("experiments ls", 0), ("trian", 2)):
        done = started(*words.split(), env=environment | asked)
        assert (done.returncode, {"\x1b", "\r"} & {*done.stdout, *done.stderr}) == (code, set())


@pytest.mark.parametrize("words", ["", "runs"])
def test_a_group_alone_shows_its_help(words):
    _, out, talk = vitcli(*words.split())
    assert (out + talk).startswith(f"Usage: vitcli {words}".rstrip())
    assert "error:" not in out + talk
