"""Every command and option that the texts in the program's source name can be typed."""

import re
from collections.abc import Iterator

import pytest

from tests.cli.commands import root
from tests.plugin_rows import EVERY
from vitcli.runner.text import closest
from vitcli.version import PACKAGE

VALUE = "VALUE"
"""Takes the place of what a message inserts."""
COMMAND = re.compile(r"(?<![\w./-])vitcli ((?:[^;\n'\"`(),<>|&.]|(?<=\w)\.(?=\w))+)")
NOUNS = ("experiment",)
"""Words that are like a command, and follow the name of the program in a sentence."""


def with_whole_commands(source: str) -> str:
    """Join the literals of a module, and write command lines that it builds of words as typed."""
    text = re.sub(r"(\.command\(|\[\"vitcli\", )f?[\"']", '"vitcli ', source)
    text = re.sub(r'"\s+f?"', "", text)
    return re.sub(r"\{[^{}\"\n]*\}", VALUE, text)


def problems(text: str) -> Iterator[str]:
    for found in COMMAND.finditer(text):
        command, words = root(), found[1].split()
        while words and hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", words[0]):
            if words[0] not in command.commands:
                is_prose = not closest(words[0], command.commands) or words[0] in NOUNS
                if command is not root() or not is_prose:
                    yield f"{found[0]}: no command {words[0]}"
                break
            command = command.commands[words.pop(0)]
        else:
            names = [[*option.opts, *option.secondary_opts] for option in command.params]
            known = {*sum(names, ["--help", "-h"])}
            for word in words:
                name = word.partition("=")[0]
                if re.fullmatch(r"--?[a-z][\w-]*", name) and name not in known:
                    yield f"{found[0]}: no option {name}"


@pytest.mark.plugin(*EVERY)
def test_every_command_in_a_text_can_be_typed():
    files = [file for floor in ("cli", "runner") for file in (PACKAGE / floor).rglob("*.py")]
    sources = [(file, with_whole_commands(file.read_text())) for file in files]
    assert [(file, problem) for file, text in sources for problem in problems(text)] == []
