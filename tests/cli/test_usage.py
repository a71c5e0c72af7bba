"""Mistakes in a command line: one line that says what is wrong, what was meant and what to type."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from vitcli.cli.main import app
from vitcli.cli.usage import explain_value, options_of, suggest_option

TOLD = {
    "trian": "'vitcli' has no command 'trian'; did you mean 'vitcli train'?",
    "runs lss": "'vitcli runs' has no command 'lss'; did you mean 'vitcli runs ls'?",
    "runs nonsense": "'vitcli runs' has no command 'nonsense'; see 'vitcli runs --help'",
    "train --epoch 3": "'vitcli train' has no option --epoch; did you mean --epochs?",
    "train --learning-speed 3": (
        "'vitcli train' has no option --learning-speed; see 'vitcli train --help'"
    ),
    "eval x --data photos": (
        "'vitcli eval' has no option --data; only 'vitcli train' and 'vitcli runs ls' have it"
    ),
    "import x --data photos": ("'vitcli import' has no option --data; type -s data.name=VALUE"),
    "ablate --epochs 1": (
        "'vitcli ablate' has no option --epochs; to change a study, write a file with the lines"
        " 'base: STUDY' and 'train: {epochs: ...}'"
    ),
    "ablate -s a=1": (
        "'vitcli ablate' has no option -s; to change a study, write a file with the lines"
        " 'base: STUDY' and 'FIELD: VALUE'"
    ),
    "ablate --seed 1": "'vitcli ablate' has no option --seed; did you mean --seeds?",
    "predict --images x": "'vitcli predict' has no option --images; see 'vitcli predict --help'",
    "--trace": "'vitcli' has no option --trace; see 'vitcli --help'",
    "predict": "'vitcli predict' needs IMAGE; type for example: vitcli predict photo.jpg --top 3",
    "import vit.pt --name theirs": (
        "'vitcli import' needs --experiment; type for example:"
        " vitcli import vit.pt -e cifar10-tiny --name theirs"
    ),
    "train --epochs ten": (
        "--epochs takes a whole number of at least 0; see 'vitcli train --help'"
    ),
    "train --epochs -1": "--epochs takes a whole number of at least 0; see 'vitcli train --help'",
    "train --lr fast": "--lr takes a number; see 'vitcli train --help'",
    "ablate -j 1000": "--jobs takes a whole number from 1 to 256; see 'vitcli ablate --help'",
    "eval x --min-accuracy 3": (
        "--min-accuracy takes a number from 0 to 1; see 'vitcli eval --help'"
    ),
    "eval x --split tset": "--split takes one of test, val, train; see 'vitcli eval --help'",
    "bench train --rounds x": (
        "--rounds takes a whole number of at least 1; see 'vitcli bench train --help'"
    ),
    "train --epochs": "--epochs needs a value; see 'vitcli train --help'",
    "train --json=3": "--json takes no value; see 'vitcli train --help'",
    "train 'my photos' photos": (
        "'vitcli train' takes no argument 'photos'; a name with spaces needs quotes"
    ),
    "doctor me": "'vitcli doctor' takes no argument 'me'; see 'vitcli doctor --help'",
    "train quickstart model.depth=4": (
        "'vitcli train' takes no argument 'model.depth=4'; to set a field, type -s model.depth=4"
    ),
}


@pytest.mark.parametrize("words", TOLD)
def test_a_mistake_is_told_in_one_line(words):
    done = CliRunner().invoke(app, shlex.split(words), prog_name="vitcli")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"error: {TOLD[words]}\n"


def test_a_wrong_variable_is_named():
    done = CliRunner().invoke(app, ["train"], prog_name="vitcli", env={"VITCLI_OFFLINE": "maybe"})
    assert done.exit_code == 2
    assert done.stderr == "error: VITCLI_OFFLINE takes true or false; see 'vitcli train --help'\n"


def parameters(command: Any) -> Iterator[tuple[Any, Any]]:
    """Every parameter with the function of its command; Typer's own have none."""
    yield from ((each, command.callback) for each in command.params if each.expose_value)
    for each in getattr(command, "commands", {}).values():
        yield from parameters(each)


def test_every_wrong_value_can_be_explained():
    """Typer reports a wrong value for numbers, choices and flags; each has its own words."""
    told = [explain_value(*each) for each in parameters(typer.main.get_command(app))]
    assert len(told) > 100
    assert "--fit takes one of crop, pad, stretch" in told
    assert "--seconds takes a number of at least 0" in told
    assert "VITCLI_OFFLINE takes true or false" in told


def contexts(command: Any, parent: Any = None) -> Iterator[Any]:
    """The context of every command that can be typed."""
    own = typer.Context(command, parent=parent, info_name=command.name)
    below = [*getattr(command, "commands", {}).values()]
    for each in below:
        yield from contexts(each, own)
    if not below:
        yield own


def test_only_an_option_of_the_command_is_suggested():
    """Tried with each option of every other command, and with the names of the arguments."""
    every = [*contexts(typer.main.get_command(app))]
    known = {name for each in every for name in options_of(each.command)}
    arguments = {f"--{each.name}" for context in every for each in context.command.params}
    for context in every:
        own = options_of(context.command)
        for name in {*known, *arguments} - {*own}:
            told = suggest_option(name, context)
            if found := re.search(r"did you mean (\S+)\?", told):
                assert found[1] in own, (context.command.name, name)
                assert name not in known or found[1] == f"{name}s", (context.command.name, name)


@pytest.mark.parametrize("words", ["", "runs"])
def test_a_group_alone_shows_its_help(words):
    done = CliRunner().invoke(app, words.split(), prog_name="vitcli")
    assert done.output.startswith(f"Usage: vitcli {words}".rstrip())
    assert "error:" not in done.output
