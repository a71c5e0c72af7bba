"""What labels and names of classes mean, the same in each format of pictures."""

import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from vitcli.runner.text import composed, is_utf8, printable, quantity

INVISIBLE = "\u00ad\u061c\u180e\ufeff" + "".join(
    map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)))
)
"""Characters that are not seen, such as marks of the direction, which ``str.strip`` leaves."""
IN_A_NAME = f"[{INVISIBLE}\u034f\ufe00-\ufe0f]"
"""Pattern of those and of characters that choose a form of the one before, as of an emoji."""
MOST_TEXT = 400_000
"""Largest number of characters of all names as JSON, so that a run's config.yaml can be read."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")
WRITTEN = re.compile(r"[+-]?(\d+\.?\d*|\d+,\d{1,2}|\.\d+)(e[+-]?\d{1,3})?", re.IGNORECASE)
"""The same as spreadsheets write it: with a decimal comma, or an exponent."""
INNER_BLANKS = r"(?<!\d) | (?!\d)"
"""Pattern of a blank that no two numbers are parted by."""
SAME = str.maketrans(
    "\u0130\u0131\u2018\u2019\u02bc\u00b4`\u2010\u2011\u2013\u2014\u2212_", "ii'''''----- "
)
"""Turkish letters i, apostrophes, hyphens and underscores, each as the one that stands for all."""
NO_GROUP = ("nan", "null", "none", "na", "n/a", "<na>", "#n/a", "#nv", "#n/d", "#null!")
NO_LABEL = ("-1", "?", *NO_GROUP)
"""What programs write for a picture without a label, in small letters."""
SEVERAL = re.compile(r"['\"\s]*[|;,]['\"\s]*")
"""What programs write between several labels of a picture."""
Pairs = list[tuple[str, str]]
Class = TypeVar("Class", bound=int | str)


def stripped(label: str) -> str:
    """Return a label without the blanks around it: spaces of any kind, characters of no width."""
    while (shorter := label.strip().strip(INVISIBLE)) != label:
        label = shorter
    return label


def same_class(label: str) -> str:
    return composed(stripped(label))


def same_group(group: str) -> str:
    """Return a group as every file writes it; '' for what programs write for no group.

    A column of whole numbers with a gap becomes one of floats, such as ``5.0``.
    """
    written = re.sub(r"^(\d+)\.0+$", r"\1", same_class(group))
    return "" if written.casefold() in NO_GROUP else written


def without_blanks(labels: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    clean = {label: same_class(label) for label in {*labels}}
    changed = [label for label in labels if stripped(label) != label]
    count = quantity(len(changed), "label")
    notes = [f"note: removed the blanks around {count}, such as {label!a}" for label in changed[:1]]
    return [clean[label] for label in labels], tuple(notes)


def not_used(path: Path, names: Sequence[str]) -> list[str]:
    return [f"{printable(path.name)}: not used: {printable(', '.join(names))}"] if names else []


def refuse_names(names: Sequence[str]) -> None:
    if len(json.dumps([*names])) > MOST_TEXT:
        raise ValueError(
            f"the names of its {len(names):,} classes have more than {MOST_TEXT:,} characters;"
            " use shorter names or fewer classes"
        )
    seen = set[str]()
    for name in names:
        if not name:
            raise ValueError("the name of a class is empty")
        if not is_utf8(name):
            raise ValueError(f"the name of class {printable(name)!r} is not UTF-8; rename it")
        if name in seen:
            raise ValueError(f"two classes have the name {printable(name)!r}")
        seen.add(name)


def in_order(names: Collection[Class]) -> list[Class]:
    """Return the classes of a table or of arrays: by value if all are numbers, else as text."""
    are_numbers = all(NUMBER.fullmatch(str(name)) for name in names)
    return sorted(sorted({*names}), key=Decimal if are_numbers else None)


def names_alike(names: Sequence[str]) -> Pairs:
    """Return classes whose names differ only in capitals, width, blanks or signs like a hyphen."""
    seen = [re.sub(IN_A_NAME, "", composed(name)).translate(SAME) for name in names]
    folded = [unicodedata.normalize("NFKC", name).casefold() for name in seen]
    return _same(names, [re.sub(INNER_BLANKS, "", " ".join(name.split())) for name in folded])


def bare(name: str) -> str:
    return name.strip("[]{}() '\"")


def notes_on_names(names: Sequence[str]) -> list[str]:
    notes = notes_on_pairs(names, "classes", "class")
    for name in names:
        if name.casefold().removesuffix(".0") in NO_LABEL:
            what = "a picture has no label, remove its pictures"
            notes.append(f"note: {name!r} is a class; if it means that {what}")
    known = {bare(name) for name in names}
    for name in names:
        parts = SEVERAL.split(bare(name))
        is_list = len(parts) > 1 and (name.startswith("[") or {*parts} <= known)
        if is_list or "|" in name or name.startswith("{"):
            notes.append(f"note: {printable(name)!r} is one class; a picture has one label")
            break
    return notes


def notes_on_pairs(names: Sequence[str], several: str, one: str) -> list[str]:
    numbers = [
        Decimal(name.replace(",", ".")) if WRITTEN.fullmatch(name) else name for name in names
    ]
    kinds = {"look like one name": names_alike(names), "are one number": _same(names, numbers)}
    return [
        f"note: the {several} {printable(a)!r} and {printable(b)!r} {what}; if they are one"
        f" {one}, write one name{f' ({len(pairs):,} such pairs)' if len(pairs) > 1 else ''}"
        for what, pairs in kinds.items()
        for a, b in pairs[:1]
    ]


def _same(names: Sequence[str], keys: Sequence[object]) -> Pairs:
    first = dict(zip(reversed(keys), reversed(names), strict=True))
    return [(first[key], name) for key, name in zip(keys, names, strict=True) if first[key] != name]
