"""The comment at the head of an experiment file."""

import re

ENTRY = re.compile(r"# (\w+):\s+(.*\S)")
CONTINUED = re.compile(r"#\s{2,}(.*\S)")


def header(text: str) -> dict[str, str]:
    """Return the entries of the comment at the head of a file, such as ``# Question: ...``.

    A line that is indented further continues the entry above.
    """
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
