"""Help and plain output: quick, narrow, and without codes that steer a terminal."""

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.help_examples import examples
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


def command_of(words: tuple[str, ...]) -> Any:
    found: Any = typer.main.get_command(app)
    for word in words:
        found = found.commands[word]
    return found


@cache
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


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_every_text_to_its_end(words):
    """A word that is broken at a hyphen, and a text that is cut, are no longer in the help."""
    shown = " ".join(help_of(words).split())
    command = command_of(words)
    parts = [each for each in getattr(command, "commands", {}).values() if not each.hidden]
    sentences = [each.help.partition("\n\n")[0] for each in (command, *parts)]
    for text in [*sentences, *(each.help or "" for each in command.params if not is_own(each))]:
        assert " ".join(text.split()) in shown


def is_own(parameter: Any) -> bool:
    """Whether the parameter is one of Typer's own, whose texts differ between releases."""
    return parameter.name in ("install_completion", "show_completion")


def test_the_commands_of_every_day_come_first():
    names = re.findall(r"^  ([\w-]+) ", help_of(()).partition("Commands:\n")[2], re.MULTILINE)
    assert names[:6] == ["train", "eval", "predict", "attn-map", "ablate", "visualize"]
    assert names[6:] == [
        "explain",
        "search",
        "runs",
        "experiments",
        "data",
        "bench",
        "import",
        "export",
        "doctor",
    ]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_can_be_typed(words):
    found = examples(command_of(words))
    assert found
    assert all(f"\n    {example}\n" in help_of(words) for example in found)
    for example in found:
        program, *arguments = shlex.split(example)
        assert program == "vitcli"
        assert tuple(arguments[: len(words)]) == words
        parse(arguments)


def parse(arguments: list[str]) -> None:
    """Parse a command line with all its options, and run nothing."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context("vitcli", arguments)


def test_an_example_with_a_wrong_option_does_not_parse():
    with pytest.raises(Exception, match="--epoch"):
        parse(["train", "quickstart", "--epoch", "3"])


@pytest.mark.parametrize("words", [(), ("train",), ("runs",), ("runs", "page")], ids=" ".join)
def test_help_is_whole_where_python_removes_docstrings(words, environment):
    done = run(environment | {"PYTHONOPTIMIZE": "2"}, "-m", "vitcli", *words, "--help")
    assert done.returncode == 0
    assert help_of(words).splitlines()[2] in done.stdout.splitlines()
    assert all(f"\n    {each}\n" in done.stdout for each in examples(command_of(words)))


def test_a_narrower_terminal_wraps_more(environment):
    done = run(environment | {"COLUMNS": "60"}, "-m", "vitcli", "eval", "--help")
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert max(map(len, help_of(("eval",)).splitlines())) > 60


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
