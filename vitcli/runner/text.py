"""Text for people: safe to print, without folders of this machine; numbers; suggestions."""

import difflib
import math
import re
import shlex
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MINUS = "\u2212"
CUTOFF = 0.7
"""Least similarity of a suggestion. A typo or two in a word are above it; 'boat' and 'cat' (0.57)
or 'car' and 'cat' (0.67) are not."""
SHORTEST_PART = 3
"""Least length of a part of a name, such as ``patch`` of ``patch_size``, that suggests the name."""

OUTSIDE = re.compile(r"""(?<![\w./])(?:~[\w.-]*/|\.\./|/[^\s/:'"]+/)(?:[^\s/:'"]+/)*""")
"""The folders of an absolute path, or of one that begins with ``..`` or ``~``, in a message."""
NO_BREAK = "\ue000"
"""A space at which no line may break: a character for private use, one column wide, which no
printable text holds."""
LABEL = re.compile(r"(\s*\S.*?\s{2,})(?=\S)")
"""The label of a line such as ``folder    runs/...``, with the spaces after it."""
UNBROKEN = re.compile(r"\[[^\]]{1,30}\]|\d %|vitcli [a-z-]+ [^;,)]*|(?<!\w)'[^'\n]{1,60}'(?!\w)")
"""An interval, a percentage, and commands and quotes, which a terminal copies as one line."""
Listener = Callable[[str], None]
"""Receives a message for the user."""


def write_message(text: str) -> None:
    """Write a message to stderr: the default listener of the functions of Python."""
    sys.stderr.write(f"{printable(text)}\n")


def ignore_message(_: object) -> None:
    """Do nothing with a message or an event: the default listener."""


def portable(value: Any) -> Any:
    """Return a text without the folders of this machine: only the last name of an outside path.

    A path is outside if it is absolute or has a ``..``, as in ``imagefolder:../clients/pets``.
    """
    if not isinstance(value, str):
        return value
    kind, colon, path = value.rpartition(":")
    is_outside = path.startswith(("/", "~")) or ".." in Path(path).parts
    return f"{kind}{colon}{Path(path).name}" if is_outside else value


def without_folders(text: str) -> str:
    return OUTSIDE.sub("", text)


def portable_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that survive a round trip through JSON, without folders of this machine."""
    return {
        name: list(value) if isinstance(value, tuple) else portable(value)
        for name, value in fields.items()
    }


def printable(value: object, *, keep: str = "", substitute: str | None = None) -> str:
    """Return text with ``substitute``, or an escape, for each character that is not printable."""

    def replace(c: str) -> str:
        return c.encode("unicode_escape").decode("ascii") if substitute is None else substitute

    return "".join(c if c.isprintable() or c in keep else replace(c) for c in str(value))


def is_utf8(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def composed(text: str) -> str:
    """Return a text in the form of Unicode (NFC) in which equal words are equal texts."""
    return unicodedata.normalize("NFC", text)


def natural_key(text: str) -> list[str | int]:
    """Return a key that sorts ``2.jpg`` before ``10.jpg``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def quantity(number: int, noun: str) -> str:
    """Return a number and its noun, such as ``1 epoch``, ``3 classes`` or ``2,000 images``."""
    ending = "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def shorten(text: str, limit: int) -> str:
    """Return a name of at most ``limit`` characters; its start and its end tell it from others."""
    if len(text) <= limit:
        return text
    kept = max(0, limit - 3)
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def quoted(text: str) -> str:
    return shlex.quote(text) if "'" in text else f"'{text}'"


def listed(lines: Sequence[str], limit: int = 20) -> str:
    """Return lines below each other, indented; those above ``limit`` are counted."""
    rest = len(lines) - limit
    shown = [*lines[:limit], *([f"... and {rest:,} more"] if rest > 0 else [])]
    return "\n".join(f"  {line}" for line in shown)


def join_words(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def one_line(text: str, limit: int = 24) -> str:
    """Return a label for a figure: one line of at most ``limit`` characters."""
    label = printable(text, substitute="?")
    return label if len(label) <= limit else label[: limit - 3] + "..."


def closest(word: str, known: Iterable[str]) -> str | None:
    names = {name.casefold(): name for name in reversed([*known])}
    word = word.casefold()
    if close := difflib.get_close_matches(word, names, n=1, cutoff=CUTOFF):
        return names[close[0]]
    if len(word) < SHORTEST_PART:
        return None
    parts = (name for key, name in names.items() if word in re.split(r"[\W_]+", key))
    return next(iter(reversed([*parts])), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    name = closest(word, known)
    return f"; did you mean {name!r}?" if name else ""


def duration(seconds: float) -> str:
    """Return a duration as text, such as ``47 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short_duration(seconds: float) -> str:
    """Return a measured time, such as ``1.25 ms``, ``12.3 s`` or ``3 min 20 s``."""
    if seconds < 1:
        return f"{1e3 * seconds:.2f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def size_text(size: float) -> str:
    """Return a number of bytes, such as ``12 kB``, ``3.4 MB`` or ``125.6 GB``."""
    if size < 1e6:
        return f"{size / 1e3:,.1f} kB"
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def rough_duration(value: float | None) -> str:
    """Return a duration such as ``31 s``, ``12 min`` or ``2.3 h``; empty for None."""
    if value is None:
        return ""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def tera(flops: float | None) -> str:
    """Return operations in units of 10^12 with three digits, such as ``0.0123``; empty for None."""
    if flops is None or flops <= 0:
        return "" if flops is None else "0"
    digits = max(0, 2 - math.floor(math.log10(flops / 1e12)))
    return f"{flops / 1e12:,.{digits}f}"


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def signed(value: float | None, digits: int) -> str:
    """Return a difference with its sign and ``digits`` decimal places; zero has no sign."""
    if value is None:
        return ""
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", MINUS)


def interval(low: float | None, high: float | None, digits: int) -> str:
    if low is None or high is None:
        return ""
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def plain(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def p_text(p: float | None) -> str:
    """Return a p-value with three decimals, or ``< 0.001``; empty if it is not known."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def setting_text(setting: Mapping[str, Any], comma: str = ", ") -> str:
    """Return a setting such as ``lr=0.001, weight_decay=0.05``, without the rooms of its fields."""
    return comma.join(f"{field.rpartition('.')[2]}={value}" for field, value in setting.items())


def unbroken(text: str) -> str:
    return UNBROKEN.sub(lambda found: found[0].replace(" ", NO_BREAK), text)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of up to ``width`` (0: any) that break no word and nothing of ``UNBROKEN``."""
    lines = textwrap.wrap(
        unbroken(text),
        width or len(text) + 1,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]


def wrap_line(line: str, width: int) -> str:
    """Return a line wrapped between words; the value of a label stays in its column."""
    if len(line) <= width:
        return line
    margin = line[: len(line) - len(line.lstrip())][: width // 4]
    found = LABEL.match(line)
    if not found or len(found[1]) > width // 2:
        return "\n".join(wrap(line, width, f"{margin}  "))
    label, value = found[1], line[len(found[1]) :]
    room = width - len(label)
    if max(map(len, parts := wrap(value, room))) <= room:
        return label + f"\n{' ' * len(label)}".join(parts)
    below = f"{margin}    "
    parts = wrap(value, width - len(below))
    return "\n".join([label.rstrip(), *(below + part for part in parts)])
