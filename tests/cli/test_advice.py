"""Every command and option that the program's texts name can be typed.

The texts are read from the source, so a message that no test provokes is checked, too.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.cli.commands import root
from vitcli.runner.text import closest
from vitcli.version import PACKAGE

VALUE = "VALUE"
"""Takes the place of what a message inserts."""
COMMAND = re.compile(r"(?<![\w./-])vitcli ((?:[^;\n'\"`(),<>|&.]|(?<=\w)\.(?=\w))+)")
NOUNS = ("experiment",)
"""Words that are like a command, and follow the name of the program in a sentence."""


def text_of(node: ast.AST) -> str:
    """Return the text of a literal. Every inserted value is ``VALUE``."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.Starred():
            return ""
    return VALUE


def texts(source: str) -> Iterator[str]:
    """Yield the literals of a module; command lines that it builds of words begin with vitcli."""
    tree = ast.parse(source)
    inside = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr():
                yield text_of(node)
            case ast.Constant(value=str(text)) if node not in inside:
                yield text
            case ast.List(elts=[ast.Constant(value="vitcli"), *_] as words):
                yield " ".join(map(text_of, words))
            case ast.Call(func=ast.Attribute(attr="command"), args=[first, *_]):
                yield f"vitcli {text_of(first)}"


def options_of(command: Any) -> list[str]:
    options = [each for each in command.params if each.param_type_name == "option"]
    return [name for option in options for name in (*option.opts, *option.secondary_opts)]


@cache
def sources() -> dict[str, str]:
    files = [file for floor in ("cli", "runner") for file in (PACKAGE / floor).rglob("*.py")]
    return {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(files)}


def problems(text: str) -> Iterator[str]:
    """Yield what cannot be typed in the commands of a text."""
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
            known = {*options_of(command), "--help", "-h"}
            for word in words:
                name = word.partition("=")[0]
                if re.fullmatch(r"--?[a-z][\w-]*", name) and name not in known:
                    yield f"{found[0]}: no option {name}"


def test_every_command_in_a_text_can_be_typed():
    found = {
        (file, each)
        for file, source in sources().items()
        for text in texts(source)
        for each in problems(text)
    }
    assert found == set()
