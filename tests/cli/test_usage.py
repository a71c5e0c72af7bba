"""What is suggested for a mistake in a command line; ``snapshots/`` holds the sentences."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.cli.usage import explain_value, options_of, suggest_option


def test_a_wrong_variable_is_named():
    done = CliRunner().invoke(app, ["train"], prog_name="vitcli", env={"VITCLI_OFFLINE": "maybe"})
    assert (done.exit_code, done.stderr.startswith("error: VITCLI_OFFLINE ")) == (2, True)


def contexts(command: Any, parent: Any = None) -> Iterator[Any]:
    """The context of every command that can be typed."""
    own = typer.Context(command, parent=parent, info_name=command.name)
    below = [*getattr(command, "commands", {}).values()]
    for each in below:
        yield from contexts(each, own)
    if not below:
        yield own


EVERY = [*contexts(typer.main.get_command(app))]


def test_every_wrong_value_can_be_explained():
    """Typer reports a wrong value for numbers, choices and flags; each has its own words."""
    for command in (context.command for context in EVERY):
        for each in command.params:
            assert not each.expose_value or explain_value(each, command.callback)


def test_only_an_option_of_the_command_is_suggested():
    """Tried with each option of every other command, and with the names of the arguments."""
    known = {name for each in EVERY for name in options_of(each.command)}
    arguments = {f"--{each.name}" for context in EVERY for each in context.command.params}
    for context in EVERY:
        own = options_of(context.command)
        for name in {*known, *arguments} - {*own}:
            told = suggest_option(name, context)
            if found := re.search(r"did you mean (\S+)\?", told):
                assert found[1] in own, (context.command.name, name)
                assert name not in known or found[1] == f"{name}s", (context.command.name, name)
