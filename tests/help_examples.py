"""The examples in the help of the commands."""

import re
from collections.abc import Iterator
from typing import Any

BLOCK = re.compile(r"^Example:\n((?: +.+\n?)+)", re.MULTILINE)


def examples(command: Any) -> list[str]:
    """Return the lines under "Example:" in the help of one command."""
    found = BLOCK.search(command.help or "")
    return [line.strip() for line in found[1].splitlines()] if found else []


def all_examples(command: Any) -> Iterator[str]:
    """Yield the examples of a command and of all commands below it."""
    yield from examples(command)
    for each in getattr(command, "commands", {}).values():
        yield from all_examples(each)
