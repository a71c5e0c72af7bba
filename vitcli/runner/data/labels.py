"""What labels and names of classes mean, the same in each format of pictures."""

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from vitcli.runner.text import composed, printable, quantity, shorten

INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
"""Characters without width, which ``str.strip`` leaves."""
LONGEST = 1000
"""Largest number of characters of a name."""
MOST_TEXT = 400_000
"""Largest number of characters of all names as JSON, so that a run's config.yaml can be read."""
NO_LABEL = ("-1", "nan", "null", "none", "na", "n/a", "<na>")
"""What programs write for a picture without a label, in small letters."""
NO_GROUP = ("nan", "null", "none")
Pairs = list[tuple[str, str]]


def stripped(label: str) -> str:
    """Return a label without the blanks around it: spaces of any kind, characters of no width."""
    while (shorter := label.strip().strip(INVISIBLE)) != label:
        label = shorter
    return label


def same_class(label: str) -> str:
    return composed(stripped(label))


def same_group(group: str) -> str:
    """Return a group as every file writes it; '' for what pandas writes for no group.

    A column of whole numbers with a gap becomes one of floats, such as ``5.0``.
    """
    written = re.sub(r"^(\d+)\.0+$", r"\1", same_class(group))
    return "" if written.casefold() in NO_GROUP else written


def without_blanks(labels: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return labels without the blanks around them, and a note if there were some."""
    clean = {label: same_class(label) for label in {*labels}}
    changed = [label for label in labels if stripped(label) != label]
    count = quantity(len(changed), "label")
    notes = [f"note: removed the blanks around {count}, such as {label!a}" for label in changed[:1]]
    return [clean[label] for label in labels], tuple(notes)


def not_used(path: Path, names: Sequence[str]) -> list[str]:
    """Return a note on the columns or arrays of a file that are not read, if there are some."""
    return [f"{printable(path.name)}: not used: {printable(', '.join(names))}"] if names else []


def refuse_names(names: Sequence[str]) -> None:
    """Refuse names of classes that are empty, too long, or not different."""
    if len(json.dumps([*names])) > MOST_TEXT:
        raise ValueError(
            f"the names of its {len(names):,} classes have more than {MOST_TEXT:,} characters;"
            " use shorter names or fewer classes"
        )
    seen = set[str]()
    for name in names:
        if not name:
            raise ValueError("the name of a class is empty")
        if len(name) > LONGEST:
            start = printable(shorten(name, 40))
            raise ValueError(f"class {start!r} has {len(name):,} characters, at most {LONGEST:,}")
        if name in seen:
            raise ValueError(f"two classes have the name {printable(name)!r}")
        seen.add(name)


def names_alike(names: Sequence[str]) -> Pairs:
    """Return classes whose names differ only in capital letters, width or blanks, in pairs."""
    folded = [unicodedata.normalize("NFKC", name).casefold() for name in names]
    keys = [" ".join(name.split()) for name in folded]
    first = dict(zip(reversed(keys), reversed(names), strict=True))
    return [(first[key], name) for key, name in zip(keys, names, strict=True) if first[key] != name]


def notes_on_names(names: Sequence[str]) -> list[str]:
    """Return notes on names that may stand for one class, or for no label."""
    return [
        f"note: the classes {printable(a)!r} and {printable(b)!r} look like one name; if they are"
        " one class, write one name"
        for a, b in names_alike(names)[:1]
    ] + [
        f"note: {name!r} is a class; if it means that a picture has no label, remove its pictures"
        for name in names
        if name.casefold() in NO_LABEL
    ]
