"""The comment at the head of an experiment file."""

import re

ENTRY = re.compile(r"# (\w+):\s+(.*\S)")


CONTINUED = re.compile(r"#\s{2,}(.*\S)")


def header(text: str) -> dict[str, str]:
    """The entries of the comment a file begins with: ``# Question: ...``; deeper lines go on."""
    entries: dict[str, str] = {}
    last = None
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if match := ENTRY.fullmatch(line.rstrip()):
            last, entries[match[1]] = match[1], match[2]
        elif last and (match := CONTINUED.fullmatch(line.rstrip())):
            entries[last] += f" {match[1]}"
    return entries
