"""Starting is quick, what goes into a pipe is plain, a mistake gets advice that can be typed."""

import subprocess
import sys

import pytest

from tests.cli.commands import started, vitcli
from tests.fabricated import make_run
from tests.fabricated_runs import make_study_folder
from tests.patience import HANG

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
    *("#vitcli train c", "#vitcli eval ", "#vitcli train -s model.nor"),
)
"""Commands, and lines to complete after ``#``."""


def test_what_only_reads_files_does_not_load_torch(here, environment):
    make_run(0)
    make_study_folder({"full/seed0": "finished"})
    streams = {"capture_output": True, "text": True, "input": "\n".join(LIGHT), "timeout": HANG}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, **streams)
    assert done.returncode == 0, done.stderr
    assert "model.norm=" in done.stdout


def test_what_goes_into_a_pipe_is_plain(environment):
    asked = {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true"}
    for words, code in (("explain", 0), ("trian", 2)):
        done = started(*words.split(), env=environment | asked)
        assert (done.returncode, {"\x1b", "\r"} & {*done.stdout, *done.stderr}) == (code, set())


@pytest.mark.parametrize("words", ["", "runs"])
def test_a_group_alone_shows_its_help(words):
    _, out, talk = vitcli(*words.split())
    assert (out + talk).startswith(f"Usage: vitcli {words}".rstrip())
    assert "error:" not in out + talk
