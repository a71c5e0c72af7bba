"""The comment at the head of an experiment file."""

import re

ENTRY = re.compile(r"# (\w+):\s+(.*\S)")
CONTINUED = re.compile(r"#\s{2,}(.*\S)")
OF_THE_ORIGINAL = ("Run", "Cost", "Result", "Tuned", "Reading")
"""Entries that are true of one file only: its command, its cost, its results, the images on which
its settings were chosen, and the explanation."""


def without_results(text: str) -> str:
    """Return the text of a file without the entries that are true of this file only."""
    kept, dropping = [], False
    for line in text.splitlines(keepends=True):
        if match := ENTRY.fullmatch(line.rstrip()):
            dropping = match[1] in OF_THE_ORIGINAL
        elif not CONTINUED.fullmatch(line.rstrip()):
            dropping = False
        if not dropping:
            kept.append(line)
    return "".join(kept)
