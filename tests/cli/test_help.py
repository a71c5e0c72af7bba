"""Help and plain output: quick, narrow, and without codes that steer a terminal."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.patience import HANG
from vitcli.cli.main import app

PROBE = """
import sys
from vitcli.cli.main import main
sys.argv = ["vitcli", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print([name for name in ("torch", "torchvision", "matplotlib") if name in sys.modules])
"""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group that help lists."""
    group = group or typer.main.get_command(app)
    yield path
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from commands(command, (*path, name))


COMMANDS = sorted(commands())


def help_of(words: tuple[str, ...]) -> str:
    """As on a terminal of 80 columns, which CliRunner pretends to be."""
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    return result.stdout


def test_the_commands_are_all_here():
    names = {" ".join(words) for words in COMMANDS}
    assert {
        "train",
        "eval",
        "predict",
        "attn-map",
        "visualize",
        "doctor",
        "runs",
        "experiments",
        "data",
    } <= names
    assert {f"runs {name}" for name in ("ls", "show", "diff", "rm", "record")} <= names
    assert {f"experiments {name}" for name in ("ls", "show", "cp", "validate", "schema")} <= names
    assert {f"data {name}" for name in ("ls", "info", "get")} <= names


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_narrow_terminal_and_says_something(words):
    lines = help_of(words).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Usage: ")
    assert re.match(r"  [A-Z].*", lines[2]), "a sentence about the command"
    assert not re.search(r"[\[{][\[{]|\.\.\.[}\]]", lines[0]), "brackets or dots twice"
    assert not [line for line in lines[1:] if line.endswith("...")], "a sentence was cut off"


def test_a_narrower_terminal_wraps_more(environment):
    done = run(environment | {"COLUMNS": "60"}, "-m", "vitcli", "train", "--help")
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert max(map(len, help_of(("train",)).splitlines())) > 60


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_that_prints_can_print_json(words):
    if len(words) == 2 or words in (("train",), ("eval",), ("predict",), ("doctor",)):
        assert "--json" in help_of(words)


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=HANG
    )


@pytest.mark.parametrize(
    "words", ["--help", "--version", "train --help", "experiments --help", "experiments ls"]
)
def test_help_does_not_load_torch(words, environment):
    done = run(environment, "-c", PROBE, *words.split())
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_completion_does_not_load_torch(environment):
    completing = {
        "_VITCLI_COMPLETE": "complete_bash",
        "COMP_WORDS": "vitcli exp",
        "COMP_CWORD": "1",
    }
    done = run(environment | completing, "-c", PROBE)
    assert done.stdout.splitlines() == ["experiments", "[]"], done.stderr


def test_the_probe_sees_torch_where_it_is_loaded(environment):
    done = run(environment, "-c", PROBE, "doctor", "--json")
    assert "'torch'" in done.stdout.splitlines()[-1]


PLAIN: dict[str, dict[str, str]] = {
    "pipe": {},
    "NO_COLOR": {"NO_COLOR": "1"},
    "dumb": {"TERM": "dumb"},
    "CI": {"GITHUB_ACTIONS": "true"},
    "forced": {"FORCE_COLOR": "1"},
}


@pytest.mark.parametrize("setting", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("words", ["--help", "experiments ls", "experiments show nothing", "trian"])
def test_what_goes_into_a_pipe_is_plain(setting, words, environment):
    done = run(environment | setting, "-m", "vitcli", *words.split())
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert done.returncode == (2 if words in ("experiments show nothing", "trian") else 0)


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}], ids=str)
def test_a_terminal_that_wants_it_plain_gets_it_plain(setting, environment):
    """A control for the one above: here stdout is a terminal, so colour would be possible."""
    terminal, output = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vitcli", "experiments", "ls"],
        env=environment | setting,
        stdout=output,
        stderr=output,
    )
    assert process.wait(timeout=HANG) == 0
    os.close(output)
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            break
    os.close(terminal)
    assert b"quickstart" in seen
    assert b"\x1b" not in seen


def test_a_closed_pipe_is_no_error(environment):
    code = "set -o pipefail; %s -m vitcli experiments schema | head -n 1"
    done = subprocess.run(
        ["bash", "-c", code % sys.executable], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_a_misspelt_command_has_a_suggestion(environment):
    done = run(environment, "-m", "vitcli", "rusn")
    assert done.returncode == 2
    assert "runs" in done.stderr
    assert "Traceback" not in done.stderr
